// SPDX-License-Identifier: Apache-2.0
#pragma once
// `RankEnds` tells which ranks of a job have ended, and how.

#include "tessera/runtime/launch/rank_process.h"

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace tessera::runtime {

/// How a rank has ended, as far as another one can know.
struct RankEnd {
  int rank = 0; ///< in the job
  std::optional<ProcessEnd> process;
  std::optional<int64_t> steps; ///< calls of Engine::step() before it
};

/// "rank 1 ended early, after 2 steps, with exit code 0; all ranks must run the
/// same number of steps"; or that it failed.
std::string text_of_end(const RankEnd& end);

/// Counts a step of this process for its RankEnd.
void count_step() noexcept;

/// What a rank notes of its process when it joins a job: process id, start and
/// host. Others on the host see by it in /proc that the process has ended.
std::string process_note();

/// [Note: ranks that have ended] A rank that waits for one that has ended would
/// wait until its time limit. Of the processes of its own host it sees the end
/// itself, however they end. A process that ends by exit(), i.e. by returning
/// from main(), writes exit code and steps into the store of the job (if that
/// is a TCPStore) for those on other hosts, and because the system does not
/// tell how many steps it has done. Thread-safe.
class RankEnds {
 public:
  /// The key of process_note() in the store of a job.
  static std::string process_key(int rank);

  /// Joins the job for this process: at its exit it notes how it ended. All
  /// ranks have set, or will set, their process_key().
  /// @param is_shared others in the process use the store too: the exit of the
  ///   process must not wait for them.
  static void watch_job(
      const c10::intrusive_ptr<c10d::Store>& store,
      int rank,
      int size,
      bool is_shared);

  /// Of the job to which the store belongs; null if this process has not joined
  /// it by watch_job().
  static RankEnds* of(const c10d::Store& store);

  /// The ranks among `ranks` that are known to have ended. Works without the
  /// store for ranks of this host. Does not block.
  std::vector<RankEnd> among(const std::vector<int>& ranks);

 private:
  RankEnds(c10::intrusive_ptr<c10d::Store> store, int rank, int size);

  void read_notes();
  std::optional<RankEnd> noted_end(int rank);
  std::optional<RankEnd> end_of(int rank, bool some_noted);
  static void note_exit(int status, void* ends);

  std::mutex mutex_;
  c10::intrusive_ptr<c10d::Store> store_;
  c10::intrusive_ptr<c10d::Store> exit_store_;
  int rank_;
  int size_;
  int64_t pid_;
  std::map<int, std::string> notes_; ///< process_note() by rank
};

} // namespace tessera::runtime
