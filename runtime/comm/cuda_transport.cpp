// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/comm/cuda_transport.h"

#include "tessera/runtime/comm/cpu_transport.h"
#include "tessera/runtime/comm/nccl_registry.h"
#include "tessera/runtime/comm/store_text.h"
#include "tessera/runtime/core/log.h"

#include <map>

namespace tessera::runtime {

namespace {

/// The ranks that share devices, determined by rank 0.
std::string shared_devices(
    c10d::Store& store,
    const std::string& mine,
    int rank,
    int size) {
  const auto key = [](int r) { return "device/" + std::to_string(r); };
  if (rank != 0) {
    store.set(key(rank), to_bytes(mine));
    return to_text(store.get("shared devices"));
  }
  std::vector<std::string> identities{mine};
  for (int r = 1; r < size; ++r) {
    identities.push_back(to_text(store.get(key(r))));
  }
  const std::string shared = ranks_on_one_device(identities);
  store.set("shared devices", to_bytes(shared));
  return shared;
}

} // namespace

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
    std::chrono::milliseconds timeout) {
  const std::string shared =
      shared_devices(*store, cuda_device_identity(device_index), rank, size);
  if (shared.empty()) {
    return make_nccl_backend(store, {rank, size, device_index, timeout});
  }
  if (rank == 0) {
    log_warning(
        "{} share one CUDA device, which NCCL does not support: tensors go through host memory, which is slow. Start at most as many local ranks as there are devices.",
        shared);
  }
  return make_cpu_backend(store, rank, size, timeout);
}

} // namespace tessera::runtime
