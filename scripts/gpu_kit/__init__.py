# SPDX-License-Identifier: Apache-2.0
"""The parts of scripts/gpu_phases.py: what it runs (jobs), how programs are run
and ended (running), what is told of them (report)."""
