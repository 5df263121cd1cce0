// SPDX-License-Identifier: Apache-2.0
#include "tessera/offload/updates/shard_tensors.h"

#include "tessera/runtime/core/error.h"

namespace tessera::offload {

runtime::UpdateTensors ShardTensors::views(const StateSpan& span) const {
  const auto stretch = [&](const at::Tensor& tensor, int64_t begin) {
    return tensor.defined() ? tensor.narrow(0, begin, span.numel)
                            : at::Tensor();
  };
  runtime::UpdateTensors views;
  views.master = stretch(master, span.shard_offset);
  views.grad = stretch(gradient, span.shard_offset);
  views.low_precision = stretch(low_precision, span.shard_offset);
  const auto states = views.states();
  TESSERA_CHECK(
      state.size() <= states.size(),
      "optimizer update: {} state tensors, but kernels take at most {}; add to UpdateTensors::states()",
      state.size(),
      states.size());
  for (size_t i = 0; i < state.size(); ++i) {
    *states[i] = stretch(state[i], span.state_offset);
  }
  return views;
}

} // namespace tessera::offload
