"""Patterns of the times at the beginning of log lines, one for each format."""

from __future__ import annotations

import re

from kvstream.logs.levels import FACILITY

_MONTH_NAMES = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec"
MONTHS = {name: number for number, name in enumerate(_MONTH_NAMES.split(), 1)}
_HMS = r"(?P<h>\d\d?)[:.](?P<mi>\d\d?)[:.](?P<s>\d\d?)"
# The name of a zone is no part of the message, and the clock stays that of the log.
_ZONE_NAMES = (
    "UTC|GMT|WET|WEST|CET|CEST|EET|EEST|BST|MSK|IST|IDT|JST|KST|HKT|SAST|HST"
    "|(?:[ECMP]|A[CEKW]|NZ)[SD]T"
)
_HALF = r"(?:\s?[AaPp][Mm](?![\w:]))?"
_ZONE = (
    rf"(?P<zone>{_HALF}(?:\s?(?:Z(?!\w)|[+-](?:0\d|1[0-4])(?::?[0-5]\d(?!\d)|(?![\w.:%-]))))?)"
    rf"(?: (?:{_ZONE_NAMES})(?![\w:.-]))?(?:\[[A-Z]\w+/\w+\])?"
)
# A comma is also that of a table.
_FRACTION = r"(?P<f>[.:]\d{1,9}|,(?:\d{3}){1,3}(?!\d)|,\d{1,9}(?![.,\d]))?(?!\d)"
_WINDOWS = r"(?:[A-Z][a-z]+\t|(?:Verbose|Information|Warning|Error|Critical|Audit [FS][a-z]+),)?\"?"
"""The level before the time in an export of the event log."""
_EPOCH_END = r"(?P<f>\.\d{1,9}|(?:\d{3}){0,3})(?P<zone>)(?=[\s,:|\]])\]?"
_MON = rf"(?i:(?:{'|'.join(MONTHS)})[a-z]{{0,6}})"
_HOST = rf"(?: (?!{FACILITY})[\w.@/-]+(?= (?:{FACILITY}\w+ )?[\w./()@-]+(?:\[\d+\])?: ))?"
"""Of syslog, before the name of a program."""
_STAMPS = [
    # The part after the second has its own pattern: lines of one second differ only in it.
    # 2015-07-29 17:41:44,747; 2024-05-01T10:00:00.123Z; 2005-06-03-15.42.50.675872;
    # 2024-05-01_10:00:00.123 of svlogd;
    # Wed 2024-05-01 10:00:00 CEST of journalctl; 2024-May-01 10:00:00; 2024年05月01日 10:00:00;
    # 2024 May  1 10:00:00 of NX-OS; 2024:05:01-10:00:00; 2024-05-01  9:00:00 of MariaDB
    (
        rf"(?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) )?(?P<p>.{{0,60}}?(?<![\w.:-]))"
        rf"(?P<stamp>(?P<y>\d{{4}})[-/.: 年](?P<mo>(?<! )\d\d?|{_MON})[-/.: 月] ?(?P<d>\d\d?)日?"
        rf"[T\s_-] ?{_HMS})",
        rf"{_FRACTION}{_ZONE}\]?",
    ),
    # 127.0.0.1 - - [10/Oct/2000:13:55:36 -0700]; [10/Oct/2000 13:55:36]; with a letter of CUPS;
    # 127.0.0.1:80 [10/Oct/2000:13:55:36.123] of HAProxy; S3 has owner and bucket before it
    (
        rf"(?P<p>(?:\S+ (?:\S+ [^\[]{{0,60}}?)?)?)\["
        rf"(?P<stamp>(?P<d>\d\d)/(?P<mo>{_MON})/(?P<y>\d{{4}})[: ]{_HMS})",
        r"(?P<f>\.\d{1,9})?(?P<zone> [+-]\d{4})?\]",
    ),
    # Dec  4 04:47:44 host; [Sun Dec 04 04:47:44 2005]; Sun Dec  4 04:47:44 UTC 2005 of date;
    # *Dec  4 04:47:44.123 UTC: of Cisco; uWSGI has it behind [pid: 1|app: 0|req: 7/7] and more
    (
        rf"(?P<p>(?:<\d+>)?|\[pid: .{{0,90}}?(?<!\S)|.{{0,40}}?(?<!\S))[\[*.]?"
        rf"(?:[A-Z][a-z][a-z],? )?(?P<stamp>(?P<mo>{_MON}) {{1,2}}(?P<d>\d\d?) {_HMS}"
        rf"(?:\.(?P<us>\d{{1,9}}))?(?:(?: (?:{_ZONE_NAMES}|[+-]\d\d))? (?P<y>\d{{4}})\b)?)",
        r"(?![\d.]| \d{4}\b)(?P<f>)(?P<zone>)\]?"
        rf"(?:(?: (?:{_ZONE_NAMES}))?:(?= )|{_HOST})",
    ),
    # Fri, 01 May 2024 10:00:00; 1:M 01 May 2024 10:00:00.123 of Redis; 01-May-2024 10:00:00 of
    # Tomcat and PHP; 01-MAY-24 10.00.00 AM of Oracle; Wednesday, 01-May-24 10:00:00 GMT
    (
        rf"(?P<p>\[?)(?:\d+:[A-Z] )?(?:[A-Z][a-z]{{2,8}},? )?"
        rf"(?P<stamp>(?P<d>\d\d?)[ -]?(?P<mo>{_MON})[ -]?(?P<y>\d{{4}}|\d\d) {_HMS})",
        rf"{_FRACTION}{_ZONE}\]?",
    ),
    # 03-17 16:13:38.811; [10.30 16:49:06]
    (rf"(?P<p>\[?)(?P<stamp>(?P<mo>\d\d)[-.](?P<d>\d\d) {_HMS})", rf"{_FRACTION}(?P<zone>)\]?"),
    # 17/06/09 20:10:40; but 31/05/24 has the day first, as its year is yet to come
    (
        rf"(?P<p>\[?)(?P<stamp>(?P<y>\d\d)/(?P<mo>\d\d)/(?P<d>\d\d) {_HMS})",
        rf"{_FRACTION}(?!\s?[AaPp][Mm]\b)(?P<zone>)\]?",
    ),
    # 20171223-22:15:29:606
    (
        rf"(?P<p>)(?P<stamp>(?P<y>\d{{4}})(?P<mo>\d\d)(?P<d>\d\d)[-T ]{_HMS})",
        rf"{_FRACTION}{_ZONE}",
    ),
    # 081109 203615
    (
        r"(?P<p>)(?P<stamp>(?P<y>\d\d)(?P<mo>\d\d)(?P<d>\d\d) (?P<h>\d\d)(?P<mi>\d\d)(?P<s>\d\d))",
        r"(?P<f>)(?P<zone>)(?= )",
    ),
    # I0715 12:34:56.789, I20240715 12:34:56.789, I240715 12:34:56.789 of CockroachDB
    (
        rf"(?P<p>[IWEFD])(?P<stamp>(?P<y>(?:20)?\d\d)?(?P<mo>\d\d)(?P<d>\d\d) {_HMS})",
        rf"{_FRACTION}(?P<zone>)",
    ),
    # 1117838570; 1117838570.123; 1117838570123; 1117838570123456789
    (r"(?P<p>\W{0,3})\[?(?P<stamp>1\d{9})", _EPOCH_END),
    # [   12.345678] of a kernel, also behind <3> or kern  :err   : of dmesg; [12.345s] of Java's
    # garbage collector
    (
        r"(?P<p>(?:<\d+>|[a-z]+\d? *:[a-z]+ *: )?)\[ *(?P<stamp>\d{1,7})",
        r"(?P<f>\.\d{3,6})(?P<zone>)s?\]",
    ),
    # 22:15:29.606; (22:15:29); 10:15PM INF of zerolog; but 10.20.30.40 is an address
    (
        r"(?P<p>[\[(]?)(?P<stamp>(?P<h>\d\d?):(?P<mi>\d\d?)"
        r"(?::(?P<s>\d\d?)|(?=[AP]M [A-Z]{3} )))",
        rf"{_FRACTION}(?P<zone>{_HALF})[\])]?(?=[\s\[])(?!\s\d\d?:\d\d:)",
    ),
    # 5/31/2024 2:05:06 PM; Information\t5/31/2024 2:05:06 PM; Error,5/31/2024 2:05:06 PM,Disk:
    # the month comes first, unless a line shows that the day does
    (
        rf"(?P<p>{_WINDOWS}\[?)"
        rf"(?P<stamp>(?P<a>\d\d?)/(?P<b>\d\d?)/(?P<y>\d{{4}}|\d\d),? {_HMS}"
        r"\s?(?P<half>[AaPp][Mm])\b)",
        r"(?P<f>)(?P<zone>)\]?",
    ),
    # 31/05/2024 14:05:06, 05-31-2024 14:05:06, [5/31/24 14:05:06:123 CEST]: no time before a line
    # shows what comes first
    (
        rf"(?P<p>{_WINDOWS}\[?)"
        rf"(?P<stamp>(?P<a>\d\d?)(?P<sep>[/-])(?P<b>\d\d?)(?P=sep)"
        rf"(?P<y>\d{{4}}|(?<=/)\d\d)(?: |-| -- ){_HMS})",
        rf"{_FRACTION}{_ZONE}\]?",
    ),
    # 240531  8:05:06 and 240531 14:05:06 of MySQL 5
    (
        r"(?P<p>(?:# Time: )?)(?P<stamp>(?P<y>\d\d)(?P<mo>\d\d)(?P<d>\d\d) {1,2}"
        r"(?P<h>\d\d?):(?P<mi>\d\d):(?P<s>\d\d))",
        r"(?P<f>)(?P<zone>)(?=\s|$)",
    ),
    # May 31, 2024 2:05:06 PM of java.util.logging; ####<May 31, 2024 2:05:06 PM CEST>;
    # May 31 2024 14:05:06: %ASA
    (
        r"(?P<p>(?:<\d+>)?|\[|####<|.{0,40}?(?<!\S))"
        rf"(?P<stamp>(?P<mo>{_MON}) {{1,2}}(?P<d>\d\d?),? (?P<y>\d{{4}}),? {_HMS})",
        rf"{_FRACTION}{_ZONE}(?:(?: [A-Z][a-z]+)*[\]>]|:(?= )|{_HOST})",
    ),
    # 20240531T140506Z; 20240531-140506; 20240531140506
    (
        r"(?P<p>\[?)(?P<stamp>(?P<y>20\d\d)(?P<mo>\d\d)(?P<d>\d\d)"
        r"[T_-]?(?P<h>\d\d)(?P<mi>\d\d)(?P<s>\d\d))(?=[\s.,:Z+\]-])",
        rf"{_FRACTION}{_ZONE}\]?",
    ),
    # 2024-05-31T14:05Z
    (
        r"(?P<p>\[?)(?P<stamp>(?P<y>\d{4})-(?P<mo>\d\d)-(?P<d>\d\d)T(?P<h>\d\d):(?P<mi>\d\d))",
        rf"(?![:.,]?\d)(?P<f>){_ZONE}\]?",
    ),
    # 31.05.2024 14:05:06; 31.5.24 14:05:06
    (
        rf"(?P<p>\[?)(?P<stamp>(?P<d>\d\d?)\.(?P<mo>\d\d?)\.(?P<y>\d{{4}}|\d\d),? {_HMS})",
        rf"{_FRACTION}{_ZONE}\]?",
    ),
    # type=SYSCALL msg=audit(1364481363.243:24287): of auditd; the number is that of the event
    (
        r"(?P<p>(?:node=\S+ )?type=[\w\[\]]+ )msg=audit\((?P<stamp>1\d{9})",
        r"(?P<f>\.\d{3})(?P<zone>):\d+\):",
    ),
    # host app 1117838570 message; only if no other pattern matches, as it may be any number
    (r"(?P<p>(?:\S+ ){1,4})\[?(?P<stamp>1\d{9})", _EPOCH_END),
]
PATTERNS = [re.compile(begin + end) for begin, end in _STAMPS]
ENDS = {pattern: re.compile(end) for pattern, (_, end) in zip(PATTERNS, _STAMPS, strict=True)}
ACCESS, YEAR_FIRST, EPOCH, KERNEL, HOUR, LOOSE = (
    PATTERNS[place] for place in (1, 5, 9, 10, 11, -1)
)
