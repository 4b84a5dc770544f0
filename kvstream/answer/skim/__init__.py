"""Skim: keep the most relevant passages for the answering model while another one reads."""
