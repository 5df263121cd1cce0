// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/memory/deferred_scalar.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/streams/stream_marks.h"

#include <ATen/DeviceAccelerator.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <optional>
#include <utility>

namespace tessera {

struct DeferredScalar::Computed {
  at::Tensor tensor;
  c10::Stream stream; ///< that computes it
  runtime::StreamMarks done;
  std::optional<double> read;
};

DeferredScalar::DeferredScalar(at::Tensor computed) {
  TESSERA_CHECK(
      computed.dim() == 0 && computed.scalar_type() == at::kDouble &&
          at::isAccelerator(computed.device().type()),
      "DeferredScalar: the value is {} of shape {} on {}; it must be one Double on an accelerator.",
      computed.toString(),
      computed.sizes(),
      computed.device());
  const c10::Device device = computed.device();
  computed_ = std::make_shared<Computed>(Computed{
      std::move(computed),
      *runtime::current_stream(device),
      runtime::mark_current(device),
      std::nullopt});
}

double DeferredScalar::value() const {
  if (!computed_) {
    return value_;
  }
  if (!computed_->read) {
    computed_->read = on_device().item<double>();
  }
  return *computed_->read;
}

at::Tensor DeferredScalar::on_device() const {
  if (!computed_) {
    return {};
  }
  const at::Tensor& tensor = computed_->tensor;
  const c10::Stream user = *runtime::current_stream(tensor.device());
  if (user != computed_->stream) {
    computed_->done.block(user);
    // Else the memory could be used again before this stream has read it.
    c10::impl::VirtualGuardImpl(tensor.device().type())
        .recordDataPtrOnStream(tensor.storage().data_ptr(), user);
  }
  return tensor;
}

} // namespace tessera
