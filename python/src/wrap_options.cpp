// SPDX-License-Identifier: Apache-2.0
#include "wrap_options.h"

#include "tessera/engine/engine_config.h"
#include "tessera/runtime/core/config.h"
#include "tessera/runtime/core/json_text.h"

#include <nlohmann/json.hpp>

#include <array>

namespace tessera::python {

void visit_fields(runtime::OptionFields& fields, WrapOptions& options) {
  tessera::visit_fields(fields, options.engine);
  fields.object("parallel", options.parallel, "");
}

namespace {

/// Names of torch and transformers.
constexpr std::array kForeignKeys{
    runtime::ForeignKey{"learning_rate", "optimizer.lr"},
    runtime::ForeignKey{"lr", "optimizer.lr"},
    runtime::ForeignKey{"weight_decay", "optimizer.weight_decay"}};

/// Marks keys of `tessera train` that are for others as known.
void leave_to_others(const runtime::ConfigReader& reader) {
  for (const char* key :
       {"task",
        "model",
        "data",
        "training",
        "schedule",
        "output",
        "device",
        "cpu_matmul",
        "cuda_matmul",
        "fused",
        "timeout_s",
        "keep_freed_memory",
        "reuse_gradients"}) {
    reader.contains(key);
  }
}

runtime::ConfigReader reader_of(
    const std::string& json,
    const std::string& source) {
  return runtime::ConfigReader(runtime::parse_json(json, source), source);
}

} // namespace

WrapOptions read_wrap_options(
    const std::string& json,
    const std::string& source) {
  const auto reader = reader_of(json, source);
  WrapOptions options;
  runtime::read_fields(reader, options);
  leave_to_others(reader);
  reader.finish(kForeignKeys);
  return options;
}

OptimizerOptions read_optimizer_options(
    const std::string& json,
    const std::string& source) {
  const auto reader = reader_of(json, source);
  OptimizerOptions options;
  runtime::read_fields(reader, options);
  reader.finish();
  return options;
}

engine::DeviceOptions read_device_options(
    const std::string& json,
    const std::string& source) {
  const auto reader = reader_of(json, source);
  engine::DeviceOptions options;
  runtime::read_fields(reader, options);
  reader.finish();
  return options;
}

} // namespace tessera::python
