// SPDX-License-Identifier: Apache-2.0
#pragma once
// What wraps, trains and saves a module. Further headers, where they are used:
// tessera/engine/schedule/lr_scheduler.h, tessera/engine/trainer/trainer.h, the
// model zoo (tessera/zoo/...), tensor- and pipeline-parallel layers.

#include "tessera/engine/engine.h"
#include "tessera/engine/engine_optimizer.h"
#include "tessera/runtime/comm/init.h"
#include "tessera/runtime/core/error.h"
#include "tessera/sharding/checkpointing/checkpoint_block.h"
#include "tessera/sharding/checkpointing/transformer_block_list.h"
#include "tessera/sharding/lazy/distributed_parameter.h"
#include "tessera/sharding/lazy/lazy.h"
