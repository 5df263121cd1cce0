// SPDX-License-Identifier: Apache-2.0
#pragma once
// `read_wrap_options()` reads the options of tessera.wrap(), which are those of
// a configuration of `tessera train`.

#include "tessera/engine/device_config.h"
#include "tessera/engine/engine.h"
#include "tessera/engine/optim/optimizer_options.h"
#include "tessera/engine/parallel/parallel_run.h"

#include <string>

namespace tessera::python {

struct WrapOptions {
  EngineOptions engine;
  ParallelOptions parallel;
};

void visit_fields(runtime::OptionFields& fields, WrapOptions& options);

/// Sections of a configuration that say what is trained, on which data and for
/// how long are left alone, as are those of init().
/// @param json an object.
/// @param source names it in errors.
/// @throws tessera::Error naming path, value and what was expected.
WrapOptions read_wrap_options(
    const std::string& json,
    const std::string& source);

/// A section `optimizer`.
OptimizerOptions read_optimizer_options(
    const std::string& json,
    const std::string& source);

/// The options of tessera.init(): `device`, `cpu_matmul`, `timeout_s`, ...
engine::DeviceOptions read_device_options(
    const std::string& json,
    const std::string& source);

} // namespace tessera::python
