// SPDX-License-Identifier: Apache-2.0
#pragma once
// Taking over from a checkpoint what one part of a model needs.

#include "tessera/engine/checkpoint/checkpoint_reader.h"
#include "tessera/engine/checkpoint/subject_tensors.h"

#include <map>
#include <optional>
#include <string>
#include <vector>

namespace tessera {

/// A checkpoint that has been looked through for everything that a part of the
/// model needs on one rank, so that nothing can be missing when the engine is
/// being changed.
class PartLoading {
 public:
  /// All arguments outlive this object.
  /// @param job all ranks, as the checkpoint's parts are numbered by.
  /// @param saved_rank the rank of the checkpoint that this one takes over, if
  ///     there is one.
  /// @throws tessera::Error when something is missing, damaged, or of another
  ///     model or optimizer.
  PartLoading(
      const WholePart& own,
      const SubjectTensors& tensors,
      CheckpointReader& reader,
      const JobRanks& job,
      const std::optional<int>& saved_rank);

  /// Values, state and counters; not the run's.
  void apply();

 private:
  at::Tensor any_tensor(int r, const std::string& name);
  const std::string& saved_name(const std::string& name) const;
  void check_parameters();
  void check_parameter(
      const ParameterRecord& record,
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

} // namespace tessera
