// SPDX-License-Identifier: Apache-2.0
#pragma once
// `init()` joins the job; `World` is this process's view of it: rank, world
// size, device, and how to make communicators.

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

namespace tessera::runtime {

class SimulatedJob;

} // namespace tessera::runtime

namespace tessera {

class Communicator;

struct InitOptions {
  /// Time limit of a collective, including the wait for the slowest rank, and
  /// of the start of a job. TESSERA_TIMEOUT_S in the environment replaces it.
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
  /// Keeps the memory of freed CPU tensors for later tensors of any size
  /// instead of returning it to the system; see keep_freed_cpu_memory().
  /// TESSERA_KEEP_MEMORY=0 in the environment turns it off. Always off under
  /// AddressSanitizer.
  bool keep_freed_memory = true;
  /// Operators of backward write over gradients that nobody else holds; see
  /// reuse_spent_gradients().
  bool reuse_gradients = true;
  /// Loads the CUDA plugin if there is a device (load_cuda_backend()) and makes
  /// World::device() the current device of the calling thread. TESSERA_CUDA=0
  /// (or OFF) in the environment turns it off, for CPU jobs on a machine with
  /// GPUs.
  bool use_cuda = true;
};

/// A rank's view of the job.
class World {
 public:
  World(
      int rank,
      int size,
      int local_rank,
      c10::intrusive_ptr<c10d::Store> store,
      InitOptions options);
  /// Rank `rank` of a job whose other ranks do not exist, or are threads of
  /// this process; see simulated_job.h.
  World(
      int rank,
      int size,
      InitOptions options,
      std::shared_ptr<runtime::SimulatedJob> simulation);
  ~World();

  /// Null in a real job.
  const std::shared_ptr<runtime::SimulatedJob>& simulation() const {
    return simulation_;
  }

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
  /// Ranks per host: LOCAL_WORLD_SIZE from the environment, or all ranks.
  int local_size() const;
  const InitOptions& options() const {
    return options_;
  }

  /// The device for this rank's module: its CUDA device, chosen by
  /// local_rank(), or the CPU if CUDA is not used.
  at::Device device() const;

  /// A key-value store that all ranks share; null if the world size is 1.
  const c10::intrusive_ptr<c10d::Store>& store() const {
    return store_;
  }

  /// Makes a communicator of all ranks, for tensors on the CPU (shared memory
  /// or Gloo, see make_cpu_backend()) or on the CUDA device with this index
  /// (NCCL, see make_cuda_backend()).
  ///
  /// Collective: every rank calls it with the same `name`, in the same order.
  /// @throws tessera::Error for CUDA when there is no device.
  std::unique_ptr<Communicator> new_communicator(
      const std::string& name,
      at::Device device = at::kCPU);

  /// Makes a communicator of some ranks, including this one. Collective: every
  /// rank of the job calls it with the same `name`, in the same order. Each
  /// rank is in one group; groups may differ in size.
  /// @param ranks ascending; the position in it is the rank within the group.
  std::unique_ptr<Communicator> new_communicator(
      const std::string& name,
      at::Device device,
      const std::vector<int>& ranks);

  /// As above, but collective over the ranks of the group only.
  /// @param key the same on all ranks of the group, and never used by them
  ///   before.
  std::unique_ptr<Communicator> join_group(
      const std::string& name,
      const std::string& key,
      at::Device device,
      const std::vector<int>& ranks);

  /// Returns `name` with a number appended that no earlier call has used, as a
  /// prefix for keys in the store. Every rank must call it in the same order.
  std::string unique_name(const std::string& name);

 private:
  int rank_;
  int size_;
  int local_rank_;
  c10::intrusive_ptr<c10d::Store> store_;
  InitOptions options_;
  std::shared_ptr<runtime::SimulatedJob> simulation_;
  int names_made_ = 0;
};

/// Joins the job that the environment describes, once per process. Call it
/// before anything else uses LibTorch's CUDA: LibTorch caches its first answer
/// to whether CUDA is available.
///
/// The environment is torchrun's (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR,
/// MASTER_PORT; `tessera launch` sets the same) or that of Slurm, Open MPI or
/// PMI, which is translated to torchrun's variables (see job_environment.h).
/// Without any of these, the world size is 1. Later calls return the same
/// World. Blocks until the store is reachable.
/// @throws tessera::Error when a variable is missing or malformed.
World& init(const InitOptions& options = {});

/// Joins the job through an existing store, e.g. a c10d::FileStore.
/// @throws tessera::Error when this process has already joined a job.
World& init_with_store(
    const c10::intrusive_ptr<c10d::Store>& store,
    int rank,
    int size,
    const InitOptions& options = {});

/// Makes this process rank `rank` of a job of `size` ranks whose others do not
/// exist; see simulated_job.h for what its collectives give.
/// @throws tessera::Error when this process has already joined a job.
World& init_simulated(int rank, int size, const InitOptions& options = {});

/// Returns the World that init() made.
/// @throws tessera::Error before init().
World& world();

} // namespace tessera
