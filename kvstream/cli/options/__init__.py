"""Options that several commands share.

Each option is read from the command line, else ``KVSTREAM_<OPTION>``, else the config file.
"""
