// SPDX-License-Identifier: Apache-2.0
#pragma once
// What wraps, trains and saves a module. Beside it are blocks.h (BMTrain's
// blocks), parallel.h (layers, pipelines and meshes), trainer.h (the training
// loop) and zoo.h (models); docs/headers.md lists all public headers.

#include "tessera/engine/engine.h"
#include "tessera/engine/engine_optimizer.h"
#include "tessera/engine/schedule/lr_scheduler.h"
#include "tessera/runtime/comm/init.h"
#include "tessera/runtime/core/error.h"
#include "tessera/sharding/lazy/distributed_parameter.h"
#include "tessera/sharding/lazy/lazy.h"
