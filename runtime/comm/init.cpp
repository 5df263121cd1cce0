// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/comm/init.h"

#include "tessera/runtime/comm/cpu_transport.h"
#include "tessera/runtime/comm/cuda_transport.h"
#include "tessera/runtime/comm/device_use.h"
#include "tessera/runtime/comm/exception_text.h"
#include "tessera/runtime/comm/group_store.h"
#include "tessera/runtime/comm/missing_ranks.h"
#include "tessera/runtime/comm/rank_ends.h"
#include "tessera/runtime/comm/rendezvous.h"
#include "tessera/runtime/comm/simulated_job.h"
#include "tessera/runtime/comm/store_text.h"
#include "tessera/runtime/comm/uncaught_errors.h"
#include "tessera/runtime/core/cuda_backend.h"
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/log.h"
#include "tessera/runtime/kernels/fast_operators.h"
#include "tessera/runtime/launch/job_environment.h"
#include "tessera/runtime/memory/cpu_allocator.h"
#include "tessera/runtime/memory/spent_gradients.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <utility>

namespace tessera {

namespace {

// One job per process, used to name collectives and by the log.
std::unique_ptr<World>& world_slot() {
  static std::unique_ptr<World> instance;
  return instance;
}

bool keeps_freed_memory(const InitOptions& options) {
#if defined(__SANITIZE_ADDRESS__)
  return false;
#else
  const char* wanted = std::getenv("TESSERA_KEEP_MEMORY");
  return options.keep_freed_memory && !(wanted && std::string(wanted) == "0");
#endif
}

bool uses_cuda(const InitOptions& options) {
  const char* wanted = std::getenv("TESSERA_CUDA");
  const bool is_off = wanted && (std::strcmp(wanted, "0") == 0 ||
                                 std::strcmp(wanted, "OFF") == 0);
  return options.use_cuda && !is_off && runtime::load_cuda_backend().loaded;
}

/// Whether a group of one rank gets a backend as larger ones do: the only way
/// to run NCCL on a machine with one device.
bool forces_backend(at::Device device) {
  const char* wanted = std::getenv("TESSERA_FORCE_NCCL");
  return !device.is_cpu() && wanted && std::strcmp(wanted, "1") == 0;
}

World& set_world(std::unique_ptr<World> made) {
  runtime::report_uncaught_errors();
  if (keeps_freed_memory(made->options())) {
    runtime::keep_freed_cpu_memory(true);
  }
  runtime::reuse_spent_gradients(made->options().reuse_gradients, at::kCPU);
  set_log_rank(made->rank(), made->size());
  if (uses_cuda(made->options())) {
    runtime::reuse_spent_gradients(
        made->options().reuse_gradients, made->device().type());
    runtime::use_fast_operators(true, made->device().type());
    // torch::kCUDA without an index means this rank's device from here on.
    const at::Device device = made->device();
    runtime::note_foreign_device_bytes(device);
    c10::impl::getDeviceGuardImpl(device.type())->setDevice(device);
  }
  world_slot() = std::move(made);
  return *world_slot();
}

} // namespace

World::World(
    int rank,
    int size,
    int local_rank,
    c10::intrusive_ptr<c10d::Store> store,
    InitOptions options)
    : rank_(rank),
      size_(size),
      local_rank_(local_rank),
      store_(std::move(store)),
      options_(options) {}

World::World(
    int rank,
    int size,
    InitOptions options,
    std::shared_ptr<runtime::SimulatedJob> simulation)
    : rank_(rank),
      size_(size),
      local_rank_(rank),
      store_(simulation->store()),
      options_(options),
      simulation_(std::move(simulation)) {
  TESSERA_CHECK(
      rank >= 0 && rank < size,
      "a simulated job of {} ranks has no rank {}",
      size,
      rank);
}

World::~World() = default;

int World::local_size() const {
  // What the environment says is about the job of this process.
  if (simulation_ || std::getenv("LOCAL_WORLD_SIZE") == nullptr) {
    return size_;
  }
  return runtime::environment_int("LOCAL_WORLD_SIZE", 1, size_);
}

at::Device World::device() const {
  if (simulation_ && simulation_->device()) {
    return *simulation_->device();
  }
  if (!uses_cuda(options_)) {
    return at::kCPU;
  }
  const runtime::CudaBackend& backend = runtime::load_cuda_backend();
  const int index = local_rank_ % backend.device_count;
  return {backend.device_type, static_cast<c10::DeviceIndex>(index)};
}

std::unique_ptr<Communicator> World::new_communicator(
    const std::string& name,
    at::Device device) {
  std::vector<int> all(static_cast<size_t>(size_));
  std::iota(all.begin(), all.end(), 0);
  return new_communicator(name, device, all);
}

std::unique_ptr<Communicator> World::new_communicator(
    const std::string& name,
    at::Device device,
    const std::vector<int>& ranks) {
  return join_group(name, unique_name(name), device, ranks);
}

std::unique_ptr<Communicator> World::join_group(
    const std::string& name,
    const std::string& key,
    at::Device device,
    const std::vector<int>& ranks) {
  const auto found = std::find(ranks.begin(), ranks.end(), rank_);
  TESSERA_CHECK(
      found != ranks.end(),
      "rank {} is not among the ranks of its own group '{}'.",
      rank_,
      name);
  if (ranks.size() == 1 && !forces_backend(device)) {
    return std::make_unique<Communicator>(name);
  }
  if (simulation_) {
    return std::make_unique<Communicator>(
        name,
        runtime::make_simulated_backend(simulation_, name, key, rank_, ranks),
        options_.timeout);
  }
  c10::intrusive_ptr<c10d::Store> all = store_;
  if (!all) {
    all = c10::make_intrusive<c10d::HashStore>();
  }
  const auto rank = static_cast<int>(found - ranks.begin());
  const std::string label = "making the group '" + name + "'";
  const std::string unique_key = key + "/" + std::to_string(ranks.front());
  const auto store = c10::make_intrusive<runtime::GroupStore>(
      all,
      runtime::GroupStore::Group{label, unique_key, rank, ranks},
      options_.timeout);
  const auto size = static_cast<int>(ranks.size());
  const auto timeout = options_.timeout;
  try {
    auto backend =
        device.is_cpu()
            ? runtime::make_cpu_backend(store, rank, size, timeout)
            : runtime::make_cuda_backend(
                  store, rank, size, device.index(), timeout, unique_key);
    // For c10d's records of collectives.
    backend->setGroupUid(unique_key);
    backend->setGroupDesc(name);
    return std::make_unique<Communicator>(
        name,
        std::move(backend),
        timeout,
        std::make_shared<runtime::MissingRanks>(store, rank, ranks));
  } catch (const runtime::LostRankError&) {
    throw;
  } catch (const c10::DistError& error) {
    const std::string text = error.what_without_backtrace();
    const std::string reason = text.substr(0, text.find('\n'));
    store->report(reason);
    TESSERA_FAIL("{} failed: {}", label, reason);
  } catch (const std::exception& error) {
    // The others need not wait for this rank.
    store->report(runtime::text_of_exception(error));
    throw;
  }
}

std::string World::unique_name(const std::string& name) {
  return name + "." + std::to_string(names_made_++);
}

World& init(const InitOptions& given) {
  if (world_slot()) {
    return *world_slot();
  }
  runtime::report_uncaught_errors(); // those of joining, too
  InitOptions options = given;
  if (std::getenv("TESSERA_TIMEOUT_S") != nullptr) {
    options.timeout = std::chrono::seconds(
        runtime::environment_int("TESSERA_TIMEOUT_S", 1, 1 << 20));
  }
  runtime::adopt_job_environment();
  if (!std::getenv("RANK") && !std::getenv("WORLD_SIZE")) {
    return set_world(std::make_unique<World>(0, 1, 0, nullptr, options));
  }
  const int size = runtime::environment_int("WORLD_SIZE", 1, 1 << 20);
  const int rank = runtime::environment_int("RANK", 0, size - 1);
  const int local_rank =
      std::getenv("LOCAL_RANK")
          ? runtime::environment_int("LOCAL_RANK", 0, size - 1)
          : rank;
  c10::intrusive_ptr<c10d::Store> store;
  if (size > 1) {
    store = runtime::join_store(rank, size, options.timeout);
  }
  if (store) {
    runtime::RankEnds::watch_job(store, rank, size, /*is_shared=*/false);
  }
  return set_world(
      std::make_unique<World>(rank, size, local_rank, store, options));
}

World& init_with_store(
    const c10::intrusive_ptr<c10d::Store>& store,
    int rank,
    int size,
    const InitOptions& options) {
  TESSERA_CHECK(
      !world_slot(),
      "init_with_store: this process has already joined a job; call it only once, before init().");
  if (store && size > 1) {
    store->set(
        runtime::RankEnds::process_key(rank),
        runtime::to_bytes(runtime::process_note()));
    runtime::RankEnds::watch_job(store, rank, size, /*is_shared=*/true);
  }
  return set_world(std::make_unique<World>(rank, size, rank, store, options));
}

World& init_simulated(int rank, int size, const InitOptions& options) {
  TESSERA_CHECK(
      !world_slot(),
      "init_simulated: this process has already joined a job; call it only once, before init().");
  return set_world(std::make_unique<World>(
      rank,
      size,
      options,
      std::make_shared<runtime::SimulatedJob>(std::vector<int>{rank})));
}

World& world() {
  TESSERA_CHECK(
      world_slot() != nullptr,
      "tessera::init() has not been called in this process; call it before anything is wrapped.");
  return *world_slot();
}

} // namespace tessera
