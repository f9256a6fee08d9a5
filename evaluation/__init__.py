"""Benchmarks, runs, scores, statistics and reports. Generating, scoring and reporting meet through files alone."""
