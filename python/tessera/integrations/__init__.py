# SPDX-License-Identifier: Apache-2.0
"""Tessera in other libraries' loops.

    tessera.integrations.accelerate    an Accelerator
    tessera.integrations.transformers  a Trainer
"""
