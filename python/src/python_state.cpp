// SPDX-License-Identifier: Apache-2.0
#include "python_state.h"

#include <pybind11/pybind11.h>

#include <utility>

namespace tessera::python {

PythonState::PythonState(
    std::string name,
    bool per_rank,
    bool optional,
    std::function<StateParts()> save,
    std::function<void(const StateParts&)> load)
    : name_(std::move(name)),
      per_rank_(per_rank),
      optional_(optional),
      save_(std::move(save)),
      load_(std::move(load)) {}

PythonState::~PythonState() {
  const pybind11::gil_scoped_acquire gil;
  save_ = nullptr;
  load_ = nullptr;
}

CheckpointState PythonState::save_state() const {
  const pybind11::gil_scoped_acquire gil;
  StateParts parts = save_();
  return {nlohmann::json::parse(parts.values), std::move(parts.tensors)};
}

void PythonState::load_state(const CheckpointState& state) {
  const pybind11::gil_scoped_acquire gil;
  load_({state.values.dump(), state.tensors});
}

} // namespace tessera::python
