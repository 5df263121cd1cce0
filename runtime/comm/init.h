// SPDX-License-Identifier: Apache-2.0
#pragma once
// The job: which rank this process is, and how it meets the others.

#include "tessera/runtime/comm/communicator.h"

#include <chrono>
#include <memory>
#include <string>
#include <vector>

namespace tessera {

struct InitOptions {
  /// How long a collective may wait for the slowest rank.
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
  /// Freed CPU tensors' memory serves later ones of that size, and does not go
  /// back to the system (keep_freed_cpu_memory()). TESSERA_KEEP_MEMORY=0 in
  /// the environment turns it off. Off where AddressSanitizer watches memory.
  bool keep_freed_memory = true;
  /// Loads the CUDA side where there is a device (load_cuda_backend()), and
  /// makes World::device() the current one of the calling thread.
  /// TESSERA_CUDA=0 in the environment turns it off, for jobs on the CPU of
  /// such a machine.
  bool use_cuda = true;
};

/// This process's place in the job.
class World {
 public:
  World(
      int rank,
      int size,
      int local_rank,
      c10::intrusive_ptr<c10d::Store> store,
      InitOptions options);
  ~World();

  int rank() const {
    return rank_;
  }
  int size() const {
    return size_;
  }
  /// Rank within this host.
  int local_rank() const {
    return local_rank_;
  }
  /// Ranks of each host: LOCAL_WORLD_SIZE of the environment, or all ranks.
  int local_size() const;
  const InitOptions& options() const {
    return options_;
  }

  /// Where this rank's module belongs: its CUDA device, chosen by local_rank(),
  /// or the CPU where CUDA is not used.
  at::Device device() const;

  /// A key-value store that all ranks share; null in a world of one.
  const c10::intrusive_ptr<c10d::Store>& store() const {
    return store_;
  }

  /// A new group of all ranks, for tensors on the CPU (shared memory or Gloo,
  /// see make_cpu_backend()) or on a CUDA device with its index (NCCL, see
  /// make_cuda_backend()).
  /// Collective: every rank calls it with the same `name`, in the same order.
  /// @throws tessera::Error for CUDA where there is no device.
  std::unique_ptr<Communicator> new_communicator(
      const std::string& name,
      at::Device device = at::kCPU);

  /// The same for some of the ranks, this one among them. Collective: every
  /// rank of the job calls it with the same `name`, in the same order; each
  /// rank is in one group, and the groups need not be equal.
  /// @param ranks ascending; position in it is the rank within the group.
  std::unique_ptr<Communicator> new_communicator(
      const std::string& name,
      at::Device device,
      const std::vector<int>& ranks);

  /// The same without the rest of the job: only the group's ranks call it.
  /// @param key the same on all of them; none of them has used it before.
  std::unique_ptr<Communicator> join_group(
      const std::string& name,
      const std::string& key,
      at::Device device,
      const std::vector<int>& ranks);

  /// A part of the job as a world of its own: its ranks count from 0 in the
  /// order of `ranks`, and meet each other alone. Only they call it. Does not
  /// block. This object outlives it.
  /// @param key the same on all of them; no part has used it before.
  /// @param ranks ascending, this one among them.
  std::unique_ptr<World> part(
      const std::string& key,
      const std::vector<int>& ranks) const;

  /// The store of the whole job, and what tells this part's keys there from
  /// other worlds'; equal on all parts that were made with one key.
  const c10::intrusive_ptr<c10d::Store>& job_store() const {
    return job_store_ ? job_store_ : store_;
  }
  const std::string& scope() const {
    return scope_;
  }
  /// The number of a rank in the whole job, for messages.
  int job_rank(int rank) const {
    return job_ranks_.empty() ? rank : job_ranks_[static_cast<size_t>(rank)];
  }

  /// `name` with a number behind it that no earlier call has returned: a prefix
  /// for keys in the store. Every rank calls it in the same order.
  std::string unique_name(const std::string& name);

 private:
  int rank_;
  int size_;
  int local_rank_;
  c10::intrusive_ptr<c10d::Store> store_;
  InitOptions options_;
  // Of a part; empty: it is the whole.
  std::vector<int> job_ranks_;
  c10::intrusive_ptr<c10d::Store> job_store_;
  std::string scope_;
  int names_made_ = 0;
};

/// Joins the job that the environment describes, once per process. Call it
/// first: LibTorch remembers whether there was CUDA when it was first asked.
///
/// The job is described by torchrun's variables
/// (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT; also set by
/// `tessera launch`), or those of Slurm, Open MPI or PMI, which are put into
/// the environment under torchrun's names (see job_environment.h); without any,
/// it is a world of one. Later calls return the same World. Blocks until the
/// store is reachable.
/// @throws tessera::Error when a variable is missing or malformed.
World& init(const InitOptions& options = {});

/// Joins over a store of the caller's, e.g. a c10d::FileStore.
World& init_with_store(
    const c10::intrusive_ptr<c10d::Store>& store,
    int rank,
    int size,
    const InitOptions& options = {});

/// The World that init() made.
/// @throws tessera::Error before init().
World& world();

} // namespace tessera
