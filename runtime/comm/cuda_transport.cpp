// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/comm/cuda_transport.h"

#include "tessera/runtime/comm/cpu_transport.h"
#include "tessera/runtime/comm/group_store.h"
#include "tessera/runtime/comm/nccl_registry.h"
#include "tessera/runtime/comm/store_text.h"
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/log.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

namespace tessera::runtime {

namespace {

enum class Transport { kNccl, kShared, kHost };

/// The plug-in's; null without one.
SharedDeviceBackend* shared_device = nullptr;

/// How the ranks reach each other, determined by rank 0.
Transport choose(
    c10d::Store& store,
    const std::string& self_text,
    int rank,
    int size) {
  const auto key = [](int r) { return "device/" + std::to_string(r); };
  if (rank != 0) {
    store.set(key(rank), to_bytes(self_text));
    return static_cast<Transport>(
        std::stoi(to_text(store.get("cuda transport"))));
  }
  std::vector<std::string> identities{self_text};
  for (int r = 1; r < size; ++r) {
    identities.push_back(to_text(store.get(key(r))));
  }
  const std::string shared = ranks_on_one_device(identities);
  auto chosen = Transport::kNccl;
  if (!shared.empty()) {
    const bool all_share = std::ranges::count(identities, self_text) == size;
    chosen =
        all_share && shared_device != nullptr && wanted_transport() == "auto"
            ? Transport::kShared
            : Transport::kHost;
  }
  if (chosen == Transport::kHost) {
    log_warning(
        "{} share one CUDA device, which NCCL does not support: tensors go through host memory, which is slow. Start at most as many local ranks as there are devices.",
        shared);
  }
  store.set(
      "cuda transport", to_bytes(std::to_string(static_cast<int>(chosen))));
  return chosen;
}

/// Null when it does not work.
c10::intrusive_ptr<c10d::Backend> make_shared_backend(
    const c10::intrusive_ptr<c10d::Store>& store,
    int rank,
    int size,
    int device_index,
    std::chrono::milliseconds timeout) {
  try {
    return shared_device(store, rank, size, device_index, timeout);
  } catch (const LostRankError&) {
    throw;
  } catch (const Error& reason) {
    // The same on all ranks.
    if (rank == 0) {
      log_warning(
          "tensors of ranks that share a CUDA device go through host memory, which is slow: {}",
          reason.what());
    }
    return nullptr;
  }
}

} // namespace

void register_shared_device_backend(SharedDeviceBackend* make) {
  shared_device = make;
}

SharedDeviceBackend* shared_device_backend() {
  return shared_device;
}

std::string ranks_on_one_device(const std::vector<std::string>& identities) {
  std::map<std::string, size_t> first;
  for (size_t r = 0; r < identities.size(); ++r) {
    const auto [known, is_new] = first.emplace(identities[r], r);
    if (!is_new) {
      return "ranks " + std::to_string(known->second) + " and " +
             std::to_string(r);
    }
  }
  return {};
}

c10::intrusive_ptr<c10d::Backend> make_cuda_backend(
    const c10::intrusive_ptr<c10d::Store>& store,
    int rank,
    int size,
    int device_index,
    std::chrono::milliseconds timeout,
    const std::string& name) {
  const Transport chosen =
      choose(*store, cuda_device_identity(device_index), rank, size);
  if (chosen == Transport::kNccl) {
    return make_nccl_backend(
        store,
        {rank, size, device_index, timeout, name, job_ranks(*store, size)});
  }
  if (chosen == Transport::kShared) {
    const auto local_keys =
        c10::make_intrusive<c10d::PrefixStore>("shared device", store);
    if (auto shared = make_shared_backend(
            local_keys, rank, size, device_index, timeout)) {
      return shared;
    }
  }
  return make_cpu_backend(store, rank, size, timeout);
}

} // namespace tessera::runtime
