"""Benchmarks of Corral, each row beside a yardstick that runs on the same machine in the same run.

`python -m bench` needs root and the packages of `scripts/setup --bench`. Nothing here is asserted by a test: a figure that
is missed is printed as missed, and only a missed ratio to a yardstick makes the exit code 1.
"""
