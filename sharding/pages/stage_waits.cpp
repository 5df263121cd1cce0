// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/pages/stage_waits.h"

#include "tessera/runtime/core/error.h"

#include <algorithm>
#include <sstream>
#include <utility>

namespace tessera::sharding {

namespace {

std::string note_of(const std::string& parameter, int rank) {
  return "copies of " + parameter + "/" + std::to_string(rank);
}

} // namespace

StageWaits::StageWaits(RankAgreement& agreement, const PageMeshes& meshes)
    : agreement_(agreement),
      rank_(meshes.module.rank()),
      stages_(meshes.model.slice({kPipelineAxis}).ranks()) {
  for (const auto& [name, mesh] : meshes.tied) {
    copies_[name].ranks = mesh.slice({kPipelineAxis}).ranks();
  }
}

WaitCheck StageWaits::watch_copies(
    const std::string& parameter,
    const std::string& function) {
  const uint64_t call = copies_.at(parameter).calls++;
  return [this,
          parameter,
          function,
          call,
          check = watch("reads the gradient of '" + parameter + "'", 0),
          noted = false]() mutable {
    if (!std::exchange(noted, true)) {
      agreement_.leave_note(
          note_of(parameter, rank_),
          formatted("{} {} {}", call, runs_, function));
    }
    check();
  };
}

WaitCheck StageWaits::watch_stages(std::string doing) {
  return copies_.empty() ? agreement_.watch_failures()
                         : watch(std::move(doing), 0);
}

WaitCheck StageWaits::watch_run() {
  return watch("runs the pipeline", ++runs_);
}

WaitCheck StageWaits::watch(std::string doing, uint64_t run) {
  return [this,
          run,
          doing = std::move(doing),
          failures = agreement_.watch_failures(),
          seen = false]() mutable {
    if (failures) {
      failures();
    }
    const std::string problem = find_wait(doing, run);
    // The other rank may just have left its wait.
    if (!problem.empty() && std::exchange(seen, true)) {
      agreement_.fail(problem);
    }
  };
}

std::string StageWaits::find_wait(const std::string& doing, uint64_t run)
    const {
  for (const auto& [parameter, copies] : copies_) {
    for (const int rank : copies.ranks) {
      const auto note = rank == rank_
                            ? std::nullopt
                            : agreement_.find_note(note_of(parameter, rank));
      if (!note) {
        continue;
      }
      std::istringstream text(*note);
      uint64_t call = 0;
      uint64_t runs = 0;
      std::string function;
      text >> call >> runs >> function;
      // It is in the past, or this rank is about to take part.
      if (call < copies.calls || (run > 0 && runs >= run)) {
        continue;
      }
      return formatted(
          "{}: {} reads the gradient of '{}', which is summed over the pipeline stages that have the parameter when it is first read; {}, which has it too, {} instead, and each waits for the other. Call {} on all of these stages, as often and in the same order, or after clip_grad_norm() or grad_norm(), which have summed it.",
          function,
          name_of(rank),
          parameter,
          name_of(rank_),
          doing,
          function);
    }
  }
  return "";
}

std::string StageWaits::name_of(int rank) const {
  const auto at = std::find(stages_.begin(), stages_.end(), rank);
  return at == stages_.end()
             ? formatted("rank {}", rank)
             : formatted(
                   "rank {} (pipeline stage {})", rank, at - stages_.begin());
}

} // namespace tessera::sharding
