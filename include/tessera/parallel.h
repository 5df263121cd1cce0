// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tensor-, context- and pipeline-parallel layers, and the mesh of ranks that
// they run on.

#include "tessera/engine/parallel/parallel_run.h"
#include "tessera/engine/parallel/pipeline_transformer_block_list.h"
#include "tessera/pipeline/make_schedule.h"
#include "tessera/pipeline/pipeline_executor.h"
#include "tessera/runtime/comm/device_mesh.h"
#include "tessera/runtime/comm/parallel_groups.h"
#include "tessera/sharding/collectives/redistribute.h"
#include "tessera/sharding/context_parallel/context_layout.h"
#include "tessera/sharding/context_parallel/context_parallel.h"
#include "tessera/sharding/tensor_parallel/dtensor.h"
#include "tessera/sharding/tensor_parallel/parallel_linear.h"
#include "tessera/sharding/tensor_parallel/tensor_plan.h"
#include "tessera/sharding/tensor_parallel/tensor_specs.h"
#include "tessera/sharding/tensor_parallel/vocab_parallel_embedding.h"
#include "tessera/sharding/tensor_parallel/vocab_parallel_loss.h"
