// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/tensor_parallel/same_batch.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/random/counter_random.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <c10/core/GradMode.h>

#include <cstdint>
#include <sstream>
#include <string>
#include <string_view>

namespace tessera::sharding {

namespace {

constexpr const char* kSameBatch = "one batch for all ranks of a group";

/// Hashes everything that must be equal on all ranks.
int64_t digest_of(const std::vector<at::Tensor>& batch) {
  std::ostringstream text;
  for (const at::Tensor& tensor : batch) {
    const at::Tensor host = tensor.detach().to(at::kCPU).contiguous();
    const std::string_view bytes(
        static_cast<const char*>(host.const_data_ptr()), host.nbytes());
    text << host.scalar_type() << host.sizes() << stream_of(bytes) << ';';
  }
  return static_cast<int64_t>(stream_of(text.str()));
}

} // namespace

void check_same_batch(
    const std::vector<at::Tensor>& batch,
    Communicator& group) {
  const at::Tensor self_tensor = at::full({1}, digest_of(batch), at::kLong);
  const at::Tensor all = at::empty({group.size()}, at::kLong);
  group.all_gather(all, self_tensor, kSameBatch).wait();
  std::string others;
  for (int rank = 1; rank < group.size(); ++rank) {
    if (all[rank].item<int64_t>() != all[0].item<int64_t>()) {
      others += others.empty() ? "" : ", ";
      others += std::to_string(rank);
    }
  }
  TESSERA_CHECK(
      others.empty(),
      "the ranks of the group '{}' share one model but were given different batches: those that differ from its rank 0 are {}. Select data by the index among ranks with different batches, not by the rank in the job, or use broadcast_batch().",
      group.name(),
      others);
}

void broadcast_batch(
    const std::vector<at::Tensor>& batch,
    Communicator& group) {
  const c10::NoGradGuard no_grad;
  for (const at::Tensor& tensor : batch) {
    TESSERA_CHECK(
        tensor.is_contiguous(),
        "broadcast_batch takes contiguous tensors, but got one of sizes {} and strides {}.",
        tensor.sizes(),
        tensor.strides());
    // Not every backend supports every dtype.
    group.broadcast(tensor.view({-1}).view(at::kByte), 0, kSameBatch).wait();
  }
}

} // namespace tessera::sharding
