// SPDX-License-Identifier: Apache-2.0
#pragma once
// Everything that a training program calls. The model zoo has headers of its
// own (tessera/zoo/...), and so have tensor- and pipeline-parallel layers.

#include "tessera/engine/engine.h"
#include "tessera/engine/schedule/lr_scheduler.h"
#include "tessera/engine/trainer/trainer.h"
#include "tessera/runtime/comm/init.h"
#include "tessera/runtime/core/error.h"
#include "tessera/sharding/checkpoint_block.h"
#include "tessera/sharding/distributed_parameter.h"
#include "tessera/sharding/lazy.h"
#include "tessera/sharding/transformer_block_list.h"
