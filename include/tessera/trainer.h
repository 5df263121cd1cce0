// SPDX-License-Identifier: Apache-2.0
#pragma once
// The training loop with schedule, accumulation, metrics and checkpoints, and
// its batches.

#include "tessera/engine/data/data_loader.h"
#include "tessera/engine/data/epoch_batches.h"
#include "tessera/engine/data/sample_order.h"
#include "tessera/engine/ema_scope.h"
#include "tessera/engine/profile/step_profiler.h"
#include "tessera/engine/schedule/lr_scheduler.h"
#include "tessera/engine/trainer/lr_range_test.h"
#include "tessera/engine/trainer/metric_sink.h"
#include "tessera/engine/trainer/trainer.h"
#include "tessera/engine/trainer/training_hook.h"
#include "tessera/engine/trainer/training_task.h"
