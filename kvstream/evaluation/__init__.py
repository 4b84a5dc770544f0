"""Texts with known answers: made up (`synthetic`), asked by benchmarks, learned from by `gates`."""
