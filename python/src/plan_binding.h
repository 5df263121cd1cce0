// SPDX-License-Identifier: Apache-2.0
#pragma once
// `bind_plan()` gives Python the plan of a training step's memory.

#include <torch/csrc/utils/pybind.h>

namespace tessera::python {

/// Adds `plan()` and the types of what it returns.
void bind_plan(pybind11::module_& module);

} // namespace tessera::python
