// SPDX-License-Identifier: Apache-2.0
#pragma once
// All schedules in all small shapes.

#include "tessera/pipeline/make_schedule.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>

namespace tessera {

using ScheduleVisitor =
    std::function<void(PipelineScheduleKind, const PipelineShape&)>;

/// Calls `visit` for every schedule that there is with 1 to 8 stages, 1 to 16
/// micro-batches and, interleaved, 1 to 4 chunks.
inline void for_every_schedule(const ScheduleVisitor& visit) {
  for (const auto& [name, kind] : pipeline_schedule_names()) {
    const bool interleaved = kind == PipelineScheduleKind::kInterleaved;
    for (int stages = 1; stages <= 8; ++stages) {
      for (int batches = 1; batches <= 16; ++batches) {
        for (int chunks = 1; chunks <= (interleaved ? 4 : 1); ++chunks) {
          if (chunks > 1 && batches % stages != 0) {
            continue;
          }
          SCOPED_TRACE(
              name + ", stages " + std::to_string(stages) + ", micro-batches " +
              std::to_string(batches) + ", chunks " + std::to_string(chunks));
          visit(kind, {stages, batches, chunks});
        }
      }
    }
  }
}

} // namespace tessera
