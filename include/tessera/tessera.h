// SPDX-License-Identifier: Apache-2.0
#pragma once
// What wraps, trains and saves a module. docs/headers.md lists further headers,
// for the trainer and for tensor- and pipeline-parallel layers; the model zoo
// has its own (tessera/zoo/...).

#include "tessera/engine/engine.h"
#include "tessera/engine/engine_optimizer.h"
#include "tessera/engine/schedule/lr_scheduler.h"
#include "tessera/runtime/comm/init.h"
#include "tessera/runtime/core/error.h"
#include "tessera/sharding/checkpointing/checkpoint_block.h"
#include "tessera/sharding/checkpointing/transformer_block_list.h"
#include "tessera/sharding/lazy/distributed_parameter.h"
#include "tessera/sharding/lazy/lazy.h"
