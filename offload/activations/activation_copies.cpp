// SPDX-License-Identifier: Apache-2.0
#include "tessera/offload/activations/activation_copies.h"

#include "tessera/runtime/core/log.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/TensorOptions.h>

#include <exception>
#include <utility>

namespace tessera::offload {

namespace {

/// [nbytes] uint8 over the whole storage.
at::Tensor bytes_of(const c10::Storage& storage) {
  auto bytes = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(storage),
      c10::DispatchKeySet(
          c10::computeDispatchKey(at::kByte, at::kStrided, storage.device())),
      caffe2::TypeMeta::Make<uint8_t>());
  bytes.unsafeGetTensorImpl()->set_sizes_contiguous(
      {static_cast<int64_t>(storage.nbytes())});
  return bytes;
}

} // namespace

ActivationCopies::ActivationCopies(
    c10::Device device,
    std::optional<int64_t> host_bytes)
    : device_(device),
      pool_({.limit_bytes = host_bytes, .device = device}),
      to_host_(device),
      to_device_(device) {}

ActivationCopies::~ActivationCopies() {
  for (const runtime::StreamLane* lane : {&to_host_, &to_device_}) {
    try {
      lane->synchronize();
    } catch (const std::exception& error) {
      log_error("copies of activations failed: {}", error.what());
    }
  }
}

HostBlock ActivationCopies::copy_out(
    const c10::Storage& from,
    const runtime::StreamSet& streams,
    runtime::StreamMarks& done) {
  const c10::NoGradGuard no_grad;
  const c10::OptionalDeviceGuard on_device(device_);
  HostBlock block = pool_.take(static_cast<int64_t>(from.nbytes()));
  if (!block.defined()) {
    return block;
  }
  to_host_.wait_for(streams.mark());
  to_host_.wait_for(block.after);
  {
    const runtime::StreamLane::Scope lane(to_host_);
    block.bytes.copy_(bytes_of(from), /*non_blocking=*/true);
  }
  done = to_host_.mark();
  return block;
}

c10::Storage ActivationCopies::copy_in(
    const HostBlock& from,
    runtime::StreamMarks& done) {
  const c10::NoGradGuard no_grad;
  const c10::OptionalDeviceGuard on_device(device_);
  // Memory of the current stream, where it is used and freed. It may have been
  // freed there just before, so the lane waits for what has been issued so far.
  at::Tensor bytes = at::empty(
      from.bytes.sizes(), at::TensorOptions(at::kByte).device(device_));
  to_device_.follow_current();
  to_device_.wait_for(done);
  {
    const runtime::StreamLane::Scope lane(to_device_);
    bytes.copy_(from.bytes, /*non_blocking=*/true);
  }
  done = to_device_.mark();
  return bytes.storage();
}

} // namespace tessera::offload
