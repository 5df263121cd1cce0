// SPDX-License-Identifier: Apache-2.0
#pragma once
// `ModelLoading` loads this rank's part of a model from a checkpoint.

#include "tessera/engine/checkpoint/checkpoint_reader.h"
#include "tessera/engine/checkpoint/subject_tensors.h"

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace tessera::engine {

/// Finds and checks everything that the model needs on one rank before the
/// engine is changed, so that nothing can be missing afterwards.
class ModelLoading {
 public:
  /// All arguments must outlive this object.
  /// @param saved_rank the rank of the checkpoint whose own state this rank
  ///   loads, if there is one.
  /// @throws tessera::Error if something is missing, damaged, or of another
  ///   model or optimizer.
  ModelLoading(
      const CheckpointSubject& subject,
      const ModelTensors& model,
      const SubjectTensors& tensors,
      CheckpointReader& reader,
      const std::optional<int>& saved_rank);

  /// Loads values, state and counters of the model, but not those of the run.
  void apply();

 private:
  at::Tensor any_tensor(int r, const std::string& name);
  const std::string& saved_name(const std::string& name) const;
  void check_parameters();
  void check_buffers() const;
  void check_parameter(
      const sharding::ParameterRecord& record,
      const std::map<std::string, std::string>& saved_by);
  void load_opaques();
  void load_slices();
  int64_t saved_averages() const;
  bool is_saved(const StateSlice& slice) const;
  bool begins_anew(const std::string& parameter, const std::string& state)
      const;
  bool has_steps(const std::string& parameter) const;
  void check_optimizer(const OptimizedParameter& parameter);
  void log_begun_anew() const;
  void log_other_optimizers() const;
  void log_dropped_groups() const;

  const CheckpointSubject& subject_;
  const ModelTensors& model_;
  const SubjectTensors& tensors_;
  CheckpointReader& reader_;
  std::map<std::string, std::string> saved_names_;
  /// saved_name() of an optimizer of the checkpoint, and of the other one that
  /// continues with its state.
  std::set<std::pair<std::string, std::string>> other_optimizers_;
  /// Parameters whose state, of no step, is of an optimizer with which this one
  /// cannot continue.
  std::set<std::string> of_other_optimizers_;
  /// Parameters that had no optimizer state, and now do.
  std::set<std::string> begun_anew_;
  std::vector<at::Tensor> full_tensors_;
  std::vector<at::Tensor> opaques_;
  std::vector<at::Tensor> buffers_;
};

} // namespace tessera::engine
