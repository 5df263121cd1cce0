// SPDX-License-Identifier: Apache-2.0
#include "tessera/offload/updates/fused_update.h"

#include <cstddef>
#include <cstdint>
#include <utility>

namespace tessera::offload {

namespace {

using Spans = std::vector<SpanUpdate>;
using Steps = std::vector<runtime::UpdateStep>;

void update_in_place(
    const Spans& spans,
    const Steps& steps,
    const at::Tensor& grad_factor,
    const ShardTensors& tensors,
    const ShardTensors* before) {
  std::vector<runtime::UpdateSegment> segments;
  std::vector<runtime::UpdateTensors> begin_from;
  for (size_t i = 0; i < spans.size(); ++i) {
    segments.push_back({tensors.views(spans[i]), steps[i]});
    segments.back().tensors.grad_factor = grad_factor;
    if (before != nullptr) {
      begin_from.push_back(before->views(spans[i]));
    }
  }
  runtime::update_segments_(segments, begin_from);
}

void update_in_stream(
    StreamedUpdate& streamed,
    bool master_on_host,
    const Spans& spans,
    const Steps& steps,
    const ShardTensors& tensors) {
  std::vector<StreamedSegment> segments;
  for (const SpanUpdate& span : spans) {
    segments.push_back({tensors.views(span), master_on_host});
  }
  streamed.run(segments, [&](const std::vector<StreamedChunk>& chunks) {
    std::vector<runtime::UpdateSegment> now;
    for (const StreamedChunk& chunk : chunks) {
      now.push_back({chunk.tensors, steps[chunk.segment]});
      runtime::rounding_of(now.back().step).first_element +=
          static_cast<uint64_t>(chunk.begin);
    }
    runtime::update_segments_(now);
  });
}

} // namespace

UpdateFunction fused_update(
    const StateAccess& state,
    Spans spans,
    Steps steps,
    at::Tensor grad_factor) {
  if (state.site().streams()) {
    return [&streamed = state.streamed(),
            master_on_host = state.site().streams_master(),
            spans = std::move(spans),
            steps = std::move(steps)](
               const ShardTensors& tensors, const ShardTensors* /*before*/) {
      update_in_stream(streamed, master_on_host, spans, steps, tensors);
    };
  }
  return [spans = std::move(spans),
          steps = std::move(steps),
          grad_factor = std::move(grad_factor)](
             const ShardTensors& tensors, const ShardTensors* before) {
    update_in_place(spans, steps, grad_factor, tensors, before);
  };
}

} // namespace tessera::offload
