// SPDX-License-Identifier: Apache-2.0
// `tessera bench`: this machine's bandwidths, and the duration of an optimizer
// step with offloaded state that they imply.

#include "bench/bench_report.h"
#include "bench/training_operators.h"
#include "program_main.h"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <chrono>
#include <cstdio>
#include <string_view>

namespace tessera::tools {

namespace {

constexpr double kMebi = 1 << 20;

} // namespace

int run_bench(int argc, char** argv) {
  if (argc > 1 && std::string_view(argv[1]) == "comm") {
    return run_bench_comm(argc - 1, argv + 1);
  }
  CLI::App app(
      "Measures memory, disk and device bandwidths and the CPU's operators, and "
      "predicts the step times that they allow. `tessera bench comm` measures the collectives of a job",
      "tessera bench");
  BenchFindings findings;
  findings.parameter_counts = {335e6, 1.3e9, 13e9};
  double seconds = 12;
  double array_mib = 256;
  double file_mib = 1024;
  std::string folder = ".";
  bool as_json = false;
  bool no_disk = false;
  int64_t training_features = 0;
  // CLI::PositiveNumber lists its range with 309 digits.
  const CLI::Validator positive(
      [](const std::string& text) -> std::string {
        double number = 0;
        return CLI::detail::lexical_cast(text, number) && number > 0
                   ? ""
                   : "'" + text + "' is not a number greater than 0";
      },
      "");
  app.add_option(
      "--folder", folder, "Folder on the disk to measure; default .");
  app.add_flag("--no-disk", no_disk, "Do not measure the disk");
  app.add_option(
         "--parameters",
         findings.parameter_counts,
         "Model sizes to predict for, in parameters, e.g. 335e6 13e9")
      ->check(positive);
  app.add_option(
         "--gradient-bytes",
         findings.bytes.gradient,
         "Bytes per parameter of gradients copied to the host; default 4")
      ->check(positive);
  app.add_option(
         "--weight-bytes",
         findings.bytes.weight,
         "Bytes per parameter of weights copied back; default 2")
      ->check(positive);
  app.add_option(
         "--seconds",
         seconds,
         "Approximate duration of the measurement; default 12")
      ->check(CLI::Range(0.1, 600.0));
  app.add_option(
         "--array-mib",
         array_mib,
         "Size of each of the four arrays in memory; default 256")
      ->check(CLI::Range(1.0, 65536.0));
  app.add_option(
         "--file-mib", file_mib, "Size of the file on disk; default 1024")
      ->check(CLI::Range(4.0, 1048576.0));
  app.add_flag(
         "--training{512}",
         training_features,
         "Also trains small models of six families on the CPU, for about a "
         "minute, and measures their operators, from which `tessera plan "
         "--bandwidths` predicts steps there; --training=768: of so many "
         "features")
      ->check(CLI::Range(64, 65536));
  app.add_flag("--json", as_json, "Print one JSON object");
  if (const auto code = parse_arguments(app, argc, argv)) {
    return *code;
  }
  const auto start = std::chrono::steady_clock::now();
  // Measuring the device is quick: a copy of a few hundred MiB suffices.
  findings.devices =
      measure_devices(static_cast<int64_t>(array_mib * kMebi), seconds / 6);
  HostBandwidthOptions memory;
  memory.array_bytes = static_cast<size_t>(array_mib * kMebi);
  memory.seconds = seconds / 3;
  findings.nodes = measure_host_memory(memory);
  findings.cpu_operators = measure_cpu_operators(seconds / 6);
  if (training_features > 0) {
    findings.training = measure_training_operators(training_features);
  }
  if (!no_disk) {
    DiskOptions disk;
    disk.folder = folder;
    disk.file_bytes = static_cast<uint64_t>(file_mib * kMebi);
    disk.seconds = seconds / 2;
    findings.disk_folder = folder;
    findings.disk = measure_disk(disk);
  }
  findings.seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start)
          .count();
  const std::string text =
      as_json ? to_json(findings).dump(2) + "\n" : to_text(findings);
  std::fputs(text.c_str(), stdout);
  return 0;
}

} // namespace tessera::tools
