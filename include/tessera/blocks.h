// SPDX-License-Identifier: Apache-2.0
#pragma once
// Blocks of a model that say how it is sharded and recomputed, as BMTrain's do.

#include "tessera/engine/parallel/pipeline_transformer_block_list.h"
#include "tessera/sharding/checkpointing/checkpoint.h"
#include "tessera/sharding/checkpointing/checkpoint_block.h"
#include "tessera/sharding/checkpointing/transformer_block_list.h"
#include "tessera/sharding/lazy/distributed_parameter.h"
