// SPDX-License-Identifier: Apache-2.0
#pragma once
// `PythonState` puts the state of a Python object into checkpoints.

#include "tessera/engine/checkpoint/checkpointable.h"

#include <functional>
#include <map>
#include <string>

namespace tessera::python {

/// Values as JSON, and tensors by name.
struct StateParts {
  std::string values;
  std::map<std::string, at::Tensor> tensors;
};

class PythonState final : public Checkpointable {
 public:
  /// @param save, load called with the GIL held.
  PythonState(
      std::string name,
      bool per_rank,
      bool optional,
      std::function<StateParts()> save,
      std::function<void(const StateParts&)> load);
  /// Takes the GIL: it frees Python objects.
  ~PythonState() override;
  PythonState(const PythonState&) = delete;
  PythonState& operator=(const PythonState&) = delete;

  std::string name() const override {
    return name_;
  }
  bool is_per_rank() const override {
    return per_rank_;
  }
  bool is_optional() const override {
    return optional_;
  }
  CheckpointState save_state() const override;
  void load_state(const CheckpointState& state) override;

 private:
  std::string name_;
  bool per_rank_;
  bool optional_;
  std::function<StateParts()> save_;
  std::function<void(const StateParts&)> load_;
};

} // namespace tessera::python
