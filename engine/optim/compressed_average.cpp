// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/optim/compressed_average.h"

#include "tessera/runtime/core/round_up.h"
#include "tessera/runtime/kernels/block_quantize.h"

namespace tessera::engine {

namespace {

constexpr runtime::BlockFormat kSigns{runtime::CodeType::kSign, 2048};
/// Parts begin where vectors do.
constexpr int64_t kPartAlignment = 128;

/// Encodes the values and leaves what that changed in `error`.
void encode_with_error(
    const at::Tensor& wire,
    const at::Tensor& values,
    const at::Tensor& error,
    const at::Tensor& used,
    int64_t parts) {
  runtime::encode_blocks_(wire, values, kSigns, parts);
  runtime::decode_blocks_(error, wire, kSigns, parts);
  error.sub_(values).neg_().mul_(used);
}

} // namespace

CompressedAverage::CompressedAverage(int64_t numel, int ranks)
    : ranks_(ranks),
      part_numel_(
          runtime::round_up((numel + ranks - 1) / ranks, kPartAlignment)) {}

int64_t CompressedAverage::wire_bytes() const {
  return 2 * ranks_ * kSigns.bytes(part_numel_);
}

void CompressedAverage::allocate(MemoryLedger& ledger, c10::Device device) {
  errors_ = ledger.allocate_zeros(
      MemoryPurpose::kOptimizerState, error_numel(), at::kFloat, device);
}

void CompressedAverage::run(
    const at::Tensor& values,
    const at::Tensor& used,
    const at::Tensor& wire,
    Communicator& communicator,
    const std::string& label,
    const WaitCheck& check) {
  const int64_t bytes = kSigns.bytes(part_numel_);
  const int64_t begin = communicator.rank() * part_numel_;
  const at::Tensor sent = wire.narrow(0, 0, ranks_ * bytes);
  const at::Tensor received = wire.narrow(0, ranks_ * bytes, ranks_ * bytes);
  const at::Tensor local_error = errors_.narrow(0, 0, padded_numel());
  const at::Tensor part_error = errors_.narrow(0, padded_numel(), part_numel_);

  values.add_(local_error).mul_(used);
  encode_with_error(sent, values, local_error, used, ranks_);
  communicator.all_to_all(received, sent, label).wait(check);

  const at::Tensor part = values.narrow(0, begin, part_numel_);
  const at::Tensor part_used = used.narrow(0, begin, part_numel_);
  runtime::sum_blocks_(
      part, received, kSigns, ranks_, 1.0 / static_cast<double>(ranks_));
  part.add_(part_error).mul_(part_used);
  const at::Tensor local = sent.narrow(0, communicator.rank() * bytes, bytes);
  encode_with_error(local, part, part_error, part_used, 1);
  communicator.all_gather(received, local, label).wait(check);
  runtime::decode_blocks_(values, received, kSigns, ranks_);
  values.mul_(used);
}

} // namespace tessera::engine
