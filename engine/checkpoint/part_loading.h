// SPDX-License-Identifier: Apache-2.0
#pragma once
// `PartLoading` loads one part of a model from a checkpoint.

#include "tessera/engine/checkpoint/checkpoint_reader.h"
#include "tessera/engine/checkpoint/subject_tensors.h"

#include <map>
#include <optional>
#include <string>
#include <vector>

namespace tessera::engine {

/// Finds and checks everything that a part of the model needs on one rank
/// before the engine is changed, so that nothing can be missing afterwards.
class PartLoading {
 public:
  /// All arguments must outlive this object.
  /// @param job all ranks, by which the checkpoint's parts are numbered.
  /// @param saved_rank the rank of the checkpoint whose own state this rank
  ///   loads, if there is one.
  /// @throws tessera::Error if something is missing, damaged, or of another
  ///   model or optimizer.
  PartLoading(
      const WholePart& own,
      const SubjectTensors& tensors,
      CheckpointReader& reader,
      const JobRanks& job,
      const std::optional<int>& saved_rank);

  /// Loads values, state and counters of the part, but not those of the run.
  void apply();

 private:
  at::Tensor any_tensor(int r, const std::string& name);
  const std::string& saved_name(const std::string& name) const;
  void check_parameters();
  void check_parameter(
      const sharding::ParameterRecord& record,
      const std::map<std::string, std::string>& saved_by);
  void load_pieces();

  const CheckpointPart& part_;
  const WholeModel& model_;
  const SubjectTensors& tensors_;
  CheckpointReader& reader_;
  std::map<std::string, std::string> saved_names_;
  std::vector<at::Tensor> wholes_;
  std::vector<at::Tensor> opaques_;
  std::vector<at::Tensor> buffers_;
};

} // namespace tessera::engine
