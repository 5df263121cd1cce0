// SPDX-License-Identifier: Apache-2.0
#pragma once
// `SequenceCurriculum` trains on short sequences first (arXiv:2108.06084).

#include "tessera/zoo/models/model.h"

#include <cstdint>

namespace tessera::runtime {

class OptionFields;

} // namespace tessera::runtime

namespace tessera::tasks {

enum class CurriculumGrowth { kLinear, kRoot };

/// The section `training.curriculum`.
struct CurriculumOptions {
  int64_t min_length = 64; ///< of step 0
  int64_t steps = 1000; ///< until sequences are whole
  int64_t multiple = 8; ///< that lengths before are
  CurriculumGrowth growth = CurriculumGrowth::kLinear;
  double root_degree = 2; ///< of kRoot
};

void visit_fields(runtime::OptionFields& fields, CurriculumOptions& options);

/// @param max_length of whole sequences.
/// @throws tessera::Error on options that do not fit each other.
void check(const CurriculumOptions& options, int64_t max_length);

/// Tokens per sequence in step s, counted from 0, of S = `steps`: min_length +
/// f * (max_length - min_length), rounded down to a multiple, with f = s / S,
/// or its root; from step S on max_length. A function of the step alone, and so
/// the same on all ranks and in a run that resumes. As DeepSpeed's
/// fixed_linear and fixed_root.
int64_t curriculum_length(
    const CurriculumOptions& options,
    int64_t max_length,
    int64_t step);

/// The first `length` tokens of each sequence, with what belongs to them: all
/// integer tensors [B, S, ...] for S tokens, such as masks, positions, numbers
/// of documents and labels of tokens. Positions are those of the whole
/// sequence.
zoo::ModelInput first_tokens(const zoo::ModelInput& batch, int64_t length);

} // namespace tessera::tasks
