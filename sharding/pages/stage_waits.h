// SPDX-License-Identifier: Apache-2.0
#pragma once
// `StageWaits` finds that another pipeline stage waits for this one in a call
// that this one does not make.
//
// [Note: reads of shared gradients] The gradient of a parameter that several
// pipeline stages have is summed over them when it is first read, which each
// stage does by itself. A rank that waits for that sum leaves a note of it. One
// of the others that meanwhile waits for what needs this rank, too, sees that
// each waits for the other, and all end with an error.

#include "tessera/runtime/comm/communicator.h"
#include "tessera/sharding/pages/page_meshes.h"
#include "tessera/sharding/plans/rank_agreement.h"

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace tessera::sharding {

/// Not thread-safe: of the thread that trains.
class StageWaits {
 public:
  /// @param agreement must outlive this object.
  StageWaits(RankAgreement& agreement, const PageMeshes& meshes);

  /// Call it before each collective over the copies of a parameter; returns the
  /// check with which to wait for it.
  /// @param parameter a name in PageMeshes::tied.
  /// @param function that sums the gradients, for errors: "Engine::grad".
  WaitCheck watch_copies(
      const std::string& parameter,
      const std::string& function);

  /// Returns a check of waits for all pipeline stages, or for one that may have
  /// left such a note.
  /// @param doing for errors: "inspects the parameters".
  WaitCheck watch_stages(std::string doing);

  /// Call it before each run of the pipeline; returns the check of its waits.
  WaitCheck watch_run();

 private:
  struct Copies {
    std::vector<int> ranks; ///< of the job, this one too
    uint64_t calls = 0; ///< of watch_copies()
  };

  /// @param run ranks that have begun as many runs are no reason to worry; 0:
  ///   all are.
  WaitCheck watch(std::string doing, uint64_t run);
  /// The error, if a rank waits for this one; empty: none does.
  std::string find_wait(const std::string& doing, uint64_t run) const;
  /// "rank 3 (pipeline stage 1)".
  std::string name_of(int rank) const;

  RankAgreement& agreement_;
  int rank_; ///< of the job
  std::vector<int> stages_; ///< ranks of the job, by pipeline stage
  std::map<std::string, Copies> copies_; ///< by parameter
  uint64_t runs_ = 0;
};

} // namespace tessera::sharding
