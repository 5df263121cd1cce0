// SPDX-License-Identifier: Apache-2.0
// `tessera bench comm`: the collectives of a job by size.

#include "bench/comm.h"
#include "program_main.h"
#include "size_option.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/io/atomic_file.h"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <cstdio>
#include <map>
#include <string>
#include <vector>

namespace tessera::tools {

namespace {

const std::map<std::string, c10::ScalarType>& comm_dtypes() {
  static const std::map<std::string, c10::ScalarType> dtypes{
      {"float32", c10::ScalarType::Float},
      {"float16", c10::ScalarType::Half},
      {"bfloat16", c10::ScalarType::BFloat16},
      {"float64", c10::ScalarType::Double}};
  return dtypes;
}

std::map<std::string, CommKind> comm_names() {
  std::map<std::string, CommKind> names;
  for (const CommKind kind : comm_kinds()) {
    names.emplace(name_of(kind), kind);
  }
  return names;
}

template <typename Value>
std::vector<Value> values_of(
    const std::vector<std::string>& names,
    const std::map<std::string, Value>& values) {
  std::vector<Value> found;
  for (const std::string& name : names) {
    found.push_back(values.at(name)); // parsed
  }
  return found;
}

} // namespace

int run_bench_comm(int argc, char** argv) {
  CLI::App app(
      "Measures the collectives of a job by size, with the communicators of "
      "the engine: run it under `tessera launch`. Bandwidths are those of "
      "nccl-tests: algbw is bytes / time, busbw what it is of the links of a "
      "ring",
      "tessera bench comm");
  CommOptions options;
  std::vector<std::string> kinds;
  std::vector<std::string> dtypes{"float32"};
  bool on_cpu = false;
  bool as_json = false;
  app.add_option("--collective", kinds, "Which, e.g. all_gather; default all")
      ->delimiter(',')
      ->check(CLI::IsMember(comm_names()));
  app.add_option(
         "--dtype",
         dtypes,
         "float32, float16, bfloat16, float64; default float32")
      ->delimiter(',')
      ->check(CLI::IsMember(comm_dtypes()));
  app.add_option(
         "--transport",
         options.transports,
         "shm, gloo (tensors on the CPU), cuda; default: what the engine uses")
      ->delimiter(',')
      ->check(CLI::IsMember({"shm", "gloo", "cuda"}));
  app.add_option(
         "--min-bytes", options.min_bytes, "Smallest size; default 1KiB")
      ->transform(size_in_bytes())
      ->check(CLI::Range(int64_t{8}, int64_t{1} << 40));
  app.add_option(
         "--max-bytes", options.max_bytes, "Largest size; default 16MiB")
      ->transform(size_in_bytes())
      ->check(CLI::Range(int64_t{8}, int64_t{1} << 40));
  app.add_option(
         "--factor", options.factor, "From a size to the next; default 4")
      ->check(CLI::Range(2, 1024));
  app.add_option("--iterations", options.iterations, "Default 20")
      ->check(CLI::Range(1, 100000));
  app.add_option("--warmup", options.warmup, "Iterations before; default 5")
      ->check(CLI::Range(0, 100000));
  app.add_flag("--cpu", on_cpu, "Do not use CUDA devices");
  app.add_flag("--json", as_json, "Print one JSON object");
  std::string output;
  app.add_option(
      "--output",
      output,
      "File for the JSON object, as `tessera plan --bandwidths` takes it; the "
      "launcher puts the rank before lines that are printed");
  if (const auto code = parse_arguments(app, argc, argv)) {
    return *code;
  }
  if (!kinds.empty()) {
    options.kinds = values_of(kinds, comm_names());
  }
  options.dtypes = values_of(dtypes, comm_dtypes());
  InitOptions init_options;
  init_options.use_cuda = !on_cpu;
  World& world = init(init_options);
  const bool logs = world.rank() == 0;
  if (logs && !as_json) {
    std::printf(
        "%d ranks, times in us, bandwidths in GB/s\n%s",
        world.size(),
        comm_header().c_str());
  }
  const CommFindings findings =
      measure_comm(world, options, [&](const CommResult& result) {
        if (!as_json) {
          std::fputs(comm_row(result, world.size()).c_str(), stdout);
          std::fflush(stdout);
        }
      });
  if (logs && as_json) {
    std::printf("%s\n", to_json(findings).dump(2).c_str());
  }
  if (logs && !output.empty()) {
    runtime::write_file_atomically(output, to_json(findings).dump(2) + "\n");
  }
  for (const CommResult& result : findings.results) {
    TESSERA_CHECK(
        result.wrong == 0,
        "tessera bench comm: {} elements of {} over {} with {} bytes are wrong",
        result.wrong,
        name_of(result.kind),
        result.transport,
        result.bytes);
  }
  return 0;
}

} // namespace tessera::tools
