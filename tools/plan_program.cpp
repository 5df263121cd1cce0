// SPDX-License-Identifier: Apache-2.0
// `tessera plan CONFIG`: whether a run fits into memory, which layout is the
// fastest, and why the others are not.

#include "program_main.h"
#include "simulation.h"
#include "tessera/planner/measured_rates.h"
#include "tessera/tasks/training_search.h"

#include "tessera/engine/report/html_report.h"
#include "tessera/planner/operator_times.h"
#include "tessera/planner/search/plan_search.h"
#include "tessera/runtime/core/config.h"
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/json_text.h"
#include "tessera/runtime/core/size_text.h"
#include "tessera/runtime/io/atomic_file.h"
#include "tessera/runtime/io/config_file.h"
#include "tessera/runtime/memory/host_heap.h"
#include "tessera/runtime/memory/memory_ledger.h"
#include "tessera/tasks/config_paths.h"
#include "tessera/tasks/plan_training.h"
#include "tessera/tasks/training_config.h"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <mutex>
#include <optional>
#include <set>
#include <stop_token>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace tessera::tools {

namespace {

using planner::Machine;
using planner::PlanAnswer;
using planner::PlannedChange;
using planner::PlannedRun;
using planner::PlanSearch;
using planner::StepTime;

struct PlanArguments {
  std::string config;
  std::vector<std::string> overrides;
  int devices = 1;
  int devices_per_node = 8;
  std::string device_memory;
  std::string host_memory;
  std::string nvme_memory;
  std::string nvme_path;
  std::string reserve;
  std::string margin;
  std::string kind = "a100";
  /// Neither devices nor their kind are given: the job's host is this one.
  bool is_for_this_machine = false;
  std::optional<int> lora_rank; ///< none: those of the configuration
  std::vector<std::string> bandwidths; ///< files
  std::vector<std::string> rates; ///< key=value
  std::string write;
  std::string report;
  bool as_given = false;
  bool operators = false;
  bool as_json = false;
  int simulated_world = 0; ///< 0: nothing is simulated
  int simulated_rank = 0;
  std::string memory_cap;
  int steps = 2;
};

/// Of this machine, or of the container that this process is in.
int64_t host_bytes_of_machine() {
  auto bytes = static_cast<int64_t>(runtime::bytes_of_machine());
  std::ifstream file("/sys/fs/cgroup/memory.max");
  int64_t most = 0;
  if (file >> most) { // it may be "max"
    bytes = std::min(bytes, most);
  }
  return bytes;
}

/// "40GiB" as configurations read it.
int64_t bytes_of(const std::string& option, const std::string& text) {
  const auto number = nlohmann::json::parse(text, nullptr, false);
  const runtime::ConfigReader reader(
      nlohmann::json{
          {option, number.is_number() ? number : nlohmann::json(text)}},
      "the command line");
  int64_t bytes = 0;
  reader.read([&](runtime::OptionFields& fields) {
    fields.bytes(option.c_str(), bytes, 0, "");
  });
  return bytes;
}

c10::DeviceType type_of(const PlanArguments& arguments) {
  return arguments.kind == "cpu" ? c10::kCPU : c10::kCUDA;
}

/// The rates of what the configuration runs on, as it multiplies.
planner::DeviceRates rates_of(
    const PlanArguments& arguments,
    planner::RateUse use) {
  planner::DeviceRates rates = planner::known_rates(arguments.kind, use);
  for (const std::string& file : arguments.bandwidths) {
    rates = planner::measured_rates(
        runtime::parse_json(runtime::read_text_file(file), file),
        type_of(arguments),
        rates);
  }
  const runtime::ConfigReader reader(
      nlohmann::json::object(), "--rate", arguments.rates);
  runtime::read_fields(reader, rates);
  reader.finish();
  rates.rounds_products = type_of(arguments) == c10::kCPU &&
                          tasks::read_training_config(
                              arguments.config,
                              arguments.overrides,
                              nullptr,
                              tasks::HubFiles::kDescriptions)
                                  .device.matmul == CpuMatmul::kBfloat16;
  return rates;
}

/// The memory that --margin leaves free: a size, or "5%" of the device's.
int64_t margin_of(const std::string& text, int64_t device_bytes) {
  if (!text.ends_with('%')) {
    const int64_t bytes = bytes_of("--margin", text);
    TESSERA_CHECK(
        bytes == 0 || bytes >= 1024,
        "--margin is {}, which is so many bytes; write {}% for a part of the device's memory, or a size such as 1GiB",
        text,
        text);
    return bytes;
  }
  double percent = 0;
  const char* const end = text.data() + text.size() - 1;
  const auto read = std::from_chars(text.data(), end, percent);
  TESSERA_CHECK(
      read.ec == std::errc() && read.ptr == end && percent >= 0 &&
          percent < 100,
      "--margin is '{}'; expected a part of the device's memory, from 0% to less than 100%, or a size such as 1GiB",
      text);
  return static_cast<int64_t>(
      static_cast<double>(device_bytes) * percent / 100);
}

Machine machine_of(const PlanArguments& arguments) {
  TESSERA_CHECK(
      !arguments.device_memory.empty(),
      "--device-memory is missing: how much memory does a device have, e.g. 40GiB?");
  PlanMachine machine;
  machine.devices = arguments.devices;
  machine.devices_per_node = arguments.devices_per_node;
  machine.device = arguments.kind;
  machine.device_bytes = bytes_of("--device-memory", arguments.device_memory);
  const auto given = [](const char* option,
                        const std::string& text) -> std::optional<int64_t> {
    return text.empty() ? std::nullopt : std::optional(bytes_of(option, text));
  };
  machine.reserved_bytes = given("--reserve", arguments.reserve);
  if (!arguments.margin.empty()) {
    machine.margin_bytes = margin_of(arguments.margin, machine.device_bytes);
  }
  machine.host_bytes = given("--host-memory", arguments.host_memory);
  if (!machine.host_bytes && arguments.is_for_this_machine) {
    machine.host_bytes = host_bytes_of_machine();
  }
  machine.nvme_bytes = given("--nvme-memory", arguments.nvme_memory);
  if (!arguments.nvme_path.empty()) {
    machine.nvme_path = arguments.nvme_path;
  }
  return planner::machine_of(
      machine, rates_of(arguments, planner::RateUse::kSteps));
}

std::string seconds_text(double seconds) {
  char text[32];
  constexpr double kNothing = 1e-6;
  const char* form = seconds < kNothing ? "%.2f"
                     : seconds < 0.01   ? "%.2g"
                     : seconds < 1      ? "%.3g"
                     : seconds < 10     ? "%.2f"
                                        : "%.1f";
  std::snprintf(text, sizeof(text), form, seconds);
  return text;
}

std::string gib(int64_t bytes) {
  char text[32];
  std::snprintf(
      text, sizeof(text), "%.1f", static_cast<double>(bytes) / (1 << 30));
  return text;
}

/// The unit of a table's bytes.
struct TableUnit {
  const char* name = "GiB";
  int64_t bytes = int64_t{1} << 30;

  /// At most five characters wide.
  std::string text(int64_t of) const {
    const double size = static_cast<double>(of) / static_cast<double>(bytes);
    constexpr double kFewest = 999.95; // without a decimal
    char text[32];
    std::snprintf(text, sizeof(text), size < kFewest ? "%.1f" : "%.0f", size);
    return text;
  }
};

/// MiB where no run takes a GiB.
TableUnit unit_of(const std::vector<PlannedRun>& runs) {
  const TableUnit gib;
  const bool are_small =
      std::all_of(runs.begin(), runs.end(), [&](const PlannedRun& run) {
        return std::max(run.device_bytes, run.host_bytes) < gib.bytes;
      });
  return are_small ? TableUnit{"MiB", int64_t{1} << 20} : gib;
}

/// The row of names above print_row()'s; with them, 80 columns wide.
void print_heading(const TableUnit& unit) {
  std::printf(
      "\n %-27s %-8s %-8s %-6s %-7s %5s %5s s/step\n",
      "layout",
      "rows",
      "recomp",
      "weight",
      "on host",
      unit.name,
      "host");
}

/// "optimizer+activations" as "opt+act".
std::string short_names(const std::string& names) {
  std::string text;
  size_t column = 0;
  for (const char letter : names) {
    column = letter == '+' ? 0 : column + 1;
    if (column <= 3) {
      text += letter;
    }
  }
  return text.empty() ? "-" : text;
}

/// One row of the table of layouts.
/// @param mark what it is: '*' the best.
/// @param notes long problems, which stand below the table; more are added.
void print_row(
    const PlannedRun& run,
    char mark,
    const TableUnit& unit,
    std::vector<std::string>& notes) {
  const bool is_known = run.device_bytes > 0;
  std::string end = seconds_text(run.time.total());
  if (run.is_bound) {
    end = ">" + end;
  } else if (!run.fits()) {
    constexpr size_t kLongest = 120;
    end = "no: " + run.problem;
    if (run.problem.size() > kLongest) {
      auto note = std::find(notes.begin(), notes.end(), run.problem);
      if (note == notes.end()) {
        note = notes.insert(note, run.problem);
      }
      end = formatted("no: [{}]", note - notes.begin() + 1);
    }
  }
  std::printf(
      "%c%-27s %2lld x %-3lld %-8s %-6s %-7s %5s %5s %s\n",
      mark,
      run.layout.c_str(),
      static_cast<long long>(run.batch_size),
      static_cast<long long>(run.accumulate),
      run.recomputed.column().c_str(),
      run.residency.empty() ? "-" : run.residency.c_str(),
      short_names(run.offloaded).c_str(),
      is_known ? unit.text(run.device_bytes).c_str() : "-",
      is_known ? unit.text(run.host_bytes).c_str() : "-",
      end.c_str());
}

/// Those that fit, the fastest first; then those that were left out, and then
/// those that do not fit.
std::vector<const PlannedRun*> sorted(const std::vector<PlannedRun>& runs) {
  std::vector<const PlannedRun*> rows;
  for (const PlannedRun& run : runs) {
    rows.push_back(&run);
  }
  const auto key = [](const PlannedRun* run) {
    return std::pair(
        run->fits()     ? 0
        : run->is_bound ? 1
                        : 2,
        run->time.total());
  };
  std::stable_sort(rows.begin(), rows.end(), [&](auto* a, auto* b) {
    return key(a) < key(b);
  });
  return rows;
}

void print_table(const PlanAnswer& answer) {
  const TableUnit unit = unit_of(answer.runs);
  print_heading(unit);
  const PlannedRun* best = answer.best_run();
  std::vector<std::string> notes;
  for (const PlannedRun* run : sorted(answer.runs)) {
    const bool is_given = run == answer.runs.data();
    print_row(*run, run == best ? '*' : is_given ? '=' : ' ', unit, notes);
  }
  for (size_t i = 0; i < notes.size(); ++i) {
    std::printf("[%zu] %s\n", i + 1, notes[i].c_str());
  }
  std::printf(
      "* the fastest that fits; = the configuration as it is, unless that is it; >\n"
      "left out: takes at least so long. rows: of a micro-batch x micro-batches of a\n"
      "step. recomp: op cheap operators, at attention, a number of layers. weight:\n"
      "ZeRO stage, or a budget of memory. %s: peak of a device; host: of a rank's\n"
      "host memory.\n",
      unit.name);
}

/// Why it is slower than the best one.
std::string loss_text(const PlannedRun& run, const PlannedRun& best) {
  const StepTime& time = run.time;
  if (time.total() < best.time.total()) {
    return formatted(
        "{:.2f} times as long, in {} micro-batches in place of {}",
        time.total() / best.time.total(),
        run.accumulate,
        best.accumulate);
  }
  const std::pair<const char*, double> parts[] = {
      {run.recomputed.any() ? "computation, with what is recomputed"
                            : "computation",
       time.compute - best.time.compute},
      {"all-gathers and reductions of shards",
       time.exposed(&StepTime::shards) - best.time.exposed(&StepTime::shards)},
      {"activations to host memory and back",
       time.exposed(&StepTime::activations) -
           best.time.exposed(&StepTime::activations)},
      {"weights and gradients in host memory or on disks",
       time.exposed(&StepTime::copies) - best.time.exposed(&StepTime::copies)},
      {"collectives between layers", time.layers - best.time.layers},
      {"idle pipeline stages", time.idle - best.time.idle},
      {"updates in host memory or on disks", time.update - best.time.update}};
  const auto* most = std::max_element(
      std::begin(parts), std::end(parts), [](const auto& a, const auto& b) {
        return a.second < b.second;
      });
  return formatted(
      "{:.2f} times as long, most of it by {}",
      time.total() / best.time.total(),
      most->first);
}

/// Of all pipeline stages.
std::set<std::string> assumptions_of(const PlannedRun& run) {
  std::set<std::string> all;
  for (const StepMemoryPlan& stage : run.stages) {
    all.insert(stage.assumptions.begin(), stage.assumptions.end());
  }
  return all;
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) {
    text += (text.empty() ? "" : " ") + word;
  }
  return text;
}

/// The keys of --lora.
void add_adapters(PlanArguments& arguments) {
  if (!arguments.lora_rank) {
    return;
  }
  TESSERA_CHECK(
      !tasks::read_training_config(
           arguments.config,
           arguments.overrides,
           nullptr,
           tasks::HubFiles::kDescriptions)
           .lora,
      "{} has adapters already (model.lora); leave out --lora, or set model.lora.r",
      arguments.config);
  arguments.overrides.push_back(
      formatted("model.lora.r={}", *arguments.lora_rank));
  arguments.overrides.push_back(
      formatted("model.lora.alpha={}", 2 * *arguments.lora_rank));
  arguments.overrides.emplace_back("model.lora.target_modules=all-linear");
}

/// The command that trains so; on several nodes that of each.
std::string command_of(
    const PlanArguments& arguments,
    const Machine& machine,
    const std::vector<std::string>& changed) {
  std::vector<std::string> words;
  if (machine.devices > 1) {
    const int nodes = (machine.devices + machine.devices_per_node - 1) /
                      machine.devices_per_node;
    const std::string rendezvous =
        nodes > 1
            ? formatted("--nnodes {} --node-rank N --master-addr HOST ", nodes)
            : "";
    words.push_back(formatted(
        "tessera launch {}--nproc {} --", rendezvous, machine.devices / nodes));
  }
  words.insert(words.end(), {"tessera train", arguments.config});
  words.insert(
      words.end(), arguments.overrides.begin(), arguments.overrides.end());
  words.insert(words.end(), changed.begin(), changed.end());
  return joined(words);
}

/// In GiB, but for small models.
std::string gib_text(int64_t bytes) {
  return std::abs(bytes) < (int64_t{1} << 30) ? runtime::size_text(bytes)
                                              : gib(bytes) + " GiB";
}

std::string host_text(
    const PlanArguments& arguments,
    const PlannedRun& run,
    const Machine& machine) {
  if (run.host_bytes == 0 ||
      (machine.device == c10::kCPU && !machine.host_bytes)) {
    return "";
  }
  const std::string bytes = gib_text(run.host_bytes * machine.ranks_of_node());
  return machine.host_bytes
             ? formatted(
                   "; host memory: {} of {} of {}",
                   bytes,
                   gib_text(*machine.host_bytes),
                   arguments.host_memory.empty()
                       ? "this machine (--host-memory)"
                       : "a node")
             : formatted(
                   "; host memory: {} of a node, which has to have that "
                   "(--host-memory)",
                   bytes);
}

std::string nvme_text(const PlannedRun& run, const Machine& machine) {
  return run.nvme_bytes == 0 || !machine.nvme_bytes
             ? ""
             : formatted(
                   "; NVMe: {} of {} of a node",
                   gib_text(run.nvme_bytes * machine.ranks_of_node()),
                   gib_text(*machine.nvme_bytes));
}

const char* counted_in(const PlannedRun& run) {
  return run.counts_tokens ? "tokens" : "examples";
}

/// What to run, its memory and its time, in a line each.
void print_answer(
    const PlanArguments& arguments,
    const Machine& machine,
    const PlannedRun& best) {
  std::printf(
      "run: %s\n", command_of(arguments, machine, best.changed).c_str());
  std::printf(
      "memory: %s of the %s of a device; free: %s, besides %s for libraries "
      "(--reserve) and %s of margin (--margin)%s%s\n",
      gib_text(best.device_bytes).c_str(),
      gib_text(machine.device_bytes).c_str(),
      gib_text(machine.available_bytes() - best.device_bytes).c_str(),
      gib_text(machine.reserved_bytes).c_str(),
      gib_text(machine.margin_bytes).c_str(),
      host_text(arguments, best, machine).c_str(),
      nvme_text(best, machine).c_str());
  std::printf(
      "time: %s s a step, %.0f %s/s of the job, %.0f of a device, estimated "
      "for %s\n",
      seconds_text(best.time.total()).c_str(),
      best.tokens_per_s,
      counted_in(best),
      best.tokens_per_s / machine.devices,
      arguments.kind.c_str());
}

/// Where a step of the layouts has other examples than the configuration's.
void print_examples(const PlanAnswer& answer, const Machine& machine) {
  if (answer.examples != answer.given_examples) {
    std::printf(
        "examples: %lld a step, not %lld as in the configuration, whose "
        "parallel section is for other than %s\n",
        static_cast<long long>(answer.examples),
        static_cast<long long>(answer.given_examples),
        runtime::count_text(machine.devices, "device").c_str());
  }
}

/// Those that are nearly as fast and leave more memory free.
void print_roomier(const PlanAnswer& answer, const Machine& machine) {
  constexpr double kNearly = 1.05;
  const PlannedRun& best = *answer.best_run();
  int64_t bytes = best.device_bytes;
  for (const PlannedRun* run : sorted(answer.runs)) {
    if (run->fits() && run->device_bytes < bytes - bytes / 100 &&
        run->time.total() <= kNearly * best.time.total()) {
      std::printf(
          "with more room: %s, %lld x %lld, recomputing %s: %s free, %.1f %% "
          "%s\n",
          run->layout.c_str(),
          static_cast<long long>(run->batch_size),
          static_cast<long long>(run->accumulate),
          run->recomputed.text().c_str(),
          gib_text(machine.available_bytes() - run->device_bytes).c_str(),
          100 * std::abs(run->time.total() / best.time.total() - 1),
          run->time.total() < best.time.total() ? "faster" : "slower");
      bytes = run->device_bytes;
    }
  }
}

void print_lifted(const PlanAnswer& answer) {
  if (!answer.lifted) {
    return;
  }
  const PlannedRun& run = answer.lifted->run;
  const PlannedRun* best = answer.best_run();
  std::printf(
      "without the placement that the configuration fixes (%s): %s s a step%s, "
      "%s of a device\n",
      answer.lifted->change.c_str(),
      seconds_text(run.time.total()).c_str(),
      best == nullptr
          ? ""
          : formatted(" in place of {}", seconds_text(best->time.total()))
                .c_str(),
      gib_text(run.device_bytes).c_str());
}

/// Where the program reads a value of a tensor, which a dry run does not have.
std::string assumption_text(const std::string& assumption) {
  const std::string reads = " read zero in ";
  const size_t found = assumption.find(reads);
  return found == std::string::npos
             ? assumption
             : formatted(
                   "a branch on a value in {} was taken as for zero: values do "
                   "not exist in a plan",
                   assumption.substr(found + reads.size()));
}

const char* overlap_text(const StepTime& time) {
  return time.overlaps ? " overlapped" : "";
}

/// Of copies between host and device, where there are any.
std::string copies_text(
    const StepTime& time,
    const char* copied,
    double seconds) {
  return seconds > 0 ? formatted(
                           ", {} {}{}",
                           copied,
                           seconds_text(seconds),
                           overlap_text(time))
                     : "";
}

void print_best(const PlanAnswer& answer) {
  const PlannedRun& best = *answer.best_run();
  const StepTime& time = best.time;
  std::printf(
      "\nestimated: %s s per step (compute %s, collectives between layers %s, of "
      "shards %s%s%s%s, idle %s, host updates %s)\n",
      seconds_text(time.total()).c_str(),
      seconds_text(time.compute).c_str(),
      seconds_text(time.layers).c_str(),
      seconds_text(time.shards).c_str(),
      overlap_text(time),
      copies_text(time, "activations to the host and back", time.activations)
          .c_str(),
      copies_text(time, "weights and gradients of the host", time.copies)
          .c_str(),
      seconds_text(time.idle).c_str(),
      seconds_text(time.update).c_str());
  for (size_t stage = 0; stage < best.stages.size(); ++stage) {
    const StepMemoryPlan& plan = best.stages[stage];
    std::printf(
        "%s\n  %-16s %16s\n  %-16s %16s, in %s %s\n",
        memory_table(
            best.stages.size() == 1
                ? std::string("memory of a rank")
                : formatted("memory of a rank of pipeline stage {}", stage),
            plan.planned)
            .c_str(),
        "activations",
        runtime::size_text(plan.peak.activations).c_str(),
        "peak",
        runtime::size_text(plan.peak_bytes).c_str(),
        plan.peak.module.c_str(),
        plan.peak.operation.c_str());
  }
  for (const std::string& assumption : assumptions_of(best)) {
    std::printf("assumed: %s\n", assumption_text(assumption).c_str());
  }
  for (const PlannedRun* run : sorted(answer.runs)) {
    if (run != &best && run->fits()) { // else the table says it
      std::printf(
          "slower: %s, %lld x %lld: %s\n",
          run->layout.c_str(),
          static_cast<long long>(run->batch_size),
          static_cast<long long>(run->accumulate),
          loss_text(*run, best).c_str());
    }
  }
}

/// Lines on stderr while a search takes longer than a second, by a thread of
/// its own: a dry run may take longer than that.
class SearchProgress {
 public:
  SearchProgress()
      : thread_([this](const std::stop_token& stop) { show_until(stop); }) {}

  void operator()(int64_t dry_runs, const PlannedRun* best) {
    const std::lock_guard lock(mutex_);
    dry_runs_ = dry_runs;
    best_ = best == nullptr ? "nothing fits yet"
                            : formatted(
                                  "the fastest yet takes {} s a step ({})",
                                  seconds_text(best->time.total()),
                                  best->layout);
  }
  void finish() {
    thread_.request_stop();
    thread_.join();
    if (shown_ && is_terminal_) {
      std::fprintf(stderr, "\r\033[K");
    }
  }

 private:
  void show_until(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    auto wait = std::chrono::seconds(1);
    while (!stopped_.wait_for(
        lock, stop, wait, [&] { return stop.stop_requested(); })) {
      std::fprintf(
          stderr,
          "%stessera: planning, %s; %s%s",
          is_terminal_ ? "\r\033[K" : "",
          runtime::count_text(dry_runs_, "dry run").c_str(),
          best_.c_str(),
          is_terminal_ ? "" : "\n");
      std::fflush(stderr);
      shown_ = true;
      wait = std::chrono::seconds(is_terminal_ ? 1 : kSecondsBetweenLines);
    }
  }

  static constexpr int kSecondsBetweenLines = 10;
  const bool is_terminal_ = ::isatty(STDERR_FILENO) != 0;
  std::mutex mutex_;
  std::condition_variable_any stopped_;
  int64_t dry_runs_ = 0;
  std::string best_ = "nothing fits yet";
  bool shown_ = false;
  std::jthread thread_; ///< last: it uses the others
};

/// Memory over the last step of a rank, by what holds it.
engine::LinePlot memory_plot(
    const PlannedRun& run,
    size_t stage,
    const Machine& machine) {
  const StepMemoryPlan& plan = run.stages[stage];
  engine::LinePlot plot;
  plot.title =
      run.stages.size() == 1
          ? std::string("Memory of a rank over a step")
          : formatted("Memory of pipeline stage {} over a step", stage);
  std::vector<double> times =
      planner::timeline_seconds(plan, run.estimated.in_16bit, machine.rates);
  const bool in_ms = times.empty() || times.back() < 1;
  for (double& time : times) {
    time *= in_ms ? 1000 : 1;
  }
  plot.x_label = formatted(
      "{} of computation, estimated{}",
      in_ms ? "ms" : "s",
      run.estimated.planned_accumulate == run.accumulate
          ? ""
          : formatted(
                "; {} of the step's {} micro-batches",
                run.estimated.planned_accumulate,
                run.accumulate));
  plot.y_label = "GiB";
  const auto add = [&](std::string label, const auto& bytes_of_moment) {
    engine::PlotSeries series{std::move(label), {}, false};
    for (size_t i = 0; i < plan.timeline.size(); ++i) {
      series.points.push_back(
          {times[i],
           static_cast<double>(bytes_of_moment(plan.timeline[i])) / (1 << 30)});
    }
    plot.series.push_back(std::move(series));
  };
  add("limit", [&](const MemoryMoment&) { return machine.available_bytes(); });
  add("total", [](const MemoryMoment& moment) { return moment.total(); });
  add("activations",
      [](const MemoryMoment& moment) { return moment.activations; });
  for (const MemoryPurpose purpose :
       {MemoryPurpose::kParameters,
        MemoryPurpose::kGradients,
        MemoryPurpose::kOptimizerState,
        MemoryPurpose::kGatherSlots,
        MemoryPurpose::kReduceSlots}) {
    add(name_of(purpose), [purpose](const MemoryMoment& moment) {
      return moment.engine[static_cast<size_t>(purpose)];
    });
  }
  return plot;
}

void write_report(
    const std::string& file,
    const PlannedRun& best,
    const Machine& machine) {
  engine::HtmlReport report;
  report.title = "Plan";
  report.facts = {
      {"layout", best.layout},
      {"weights", best.residency},
      {"on the host", best.offloaded.empty() ? "nothing" : best.offloaded},
      {"rows x micro-batches",
       formatted("{} x {}", best.batch_size, best.accumulate)},
      {"recomputed", best.recomputed.text()},
      {"peak of a device", runtime::size_text(best.device_bytes)},
      {"seconds per step, estimated", seconds_text(best.time.total())}};
  for (const std::string& assumption : assumptions_of(best)) {
    report.facts.emplace_back("assumed", assumption);
  }
  for (size_t stage = 0; stage < best.stages.size(); ++stage) {
    report.plots.push_back(memory_plot(best, stage, machine));
  }
  runtime::write_file_atomically(file, engine::to_html(report));
}

/// A configuration that extends the given one.
void write_config(const PlanArguments& arguments, const PlannedRun& best) {
  nlohmann::json set = nlohmann::json::object();
  std::vector<std::string> all = arguments.overrides;
  all.insert(all.end(), best.overrides.begin(), best.overrides.end());
  for (const std::string& override : all) {
    runtime::apply_override(set, override);
  }
  const std::filesystem::path folder =
      std::filesystem::absolute(arguments.write).parent_path();
  tasks::express_config_paths(set, folder);
  nlohmann::ordered_json config{
      {"extends",
       std::filesystem::relative(
           std::filesystem::absolute(arguments.config), folder)
           .string()}};
  config.update(nlohmann::ordered_json(set));
  runtime::write_file_atomically(arguments.write, config.dump(2) + "\n");
}

nlohmann::ordered_json json_of(const PlannedRun& run) {
  nlohmann::ordered_json json{
      {"overrides", run.overrides},
      {"changed", run.changed},
      {"is_bound", run.is_bound},
      {"layout", run.layout},
      {"recomputed",
       {{"layers", run.recomputed.layers},
        {"operators", run.recomputed.operators},
        {"attention", run.recomputed.attention},
        {"divided_inputs", run.recomputed.divided_inputs}}},
      {"weights", run.residency},
      {"on_host", run.offloaded},
      {"fits", run.fits()},
      {"problem", run.problem},
      {"device_bytes", run.device_bytes},
      {"host_bytes", run.host_bytes},
      {"nvme_bytes", run.nvme_bytes}};
  if (run.is_bound) {
    json["step_s"] = run.time.total();
  }
  if (!run.stages.empty()) {
    json["step_s"] = run.time.total();
    json["compute_s"] = run.time.compute;
    json["shards_s"] = run.time.shards;
    json["activations_s"] = run.time.activations;
    json["copies_s"] = run.time.copies;
    json["layers_s"] = run.time.layers;
    json["idle_s"] = run.time.idle;
    json["update_s"] = run.time.update;
    json["tokens_per_s"] = run.tokens_per_s;
    json["flops"] = run.flops;
    json["assumed"] = assumptions_of(run);
  }
  return json;
}

/// Why none of the runs is possible.
std::string refusal(const PlanArguments& arguments, const PlanAnswer& answer) {
  std::string text = formatted(
      "no layout can run on {} (--devices)",
      runtime::count_text(arguments.devices, "device"));
  std::set<std::string> shown;
  for (const PlannedRun& run : answer.runs) {
    constexpr size_t kMostReasons = 4;
    if (!run.problem.empty() && shown.size() < kMostReasons &&
        shown.insert(run.problem).second) {
      text += formatted(
          "\n  {}: {}",
          &run == answer.runs.data() ? "the configuration as it is"
                                     : run.layout,
          run.problem);
    }
  }
  if (!answer.can_share_examples) {
    text += formatted(
        "\n  other layouts: a step has {} examples (training.batch_size, training.accumulate and parallel), which so many ranks cannot have in equal parts; use a number of devices that divides them, another training.accumulate, or parallel=null, with which each device adds its own",
        answer.examples);
  }
  return text;
}

/// What to do when none of the runs fits.
std::string remedy(const PlanArguments& arguments, const PlanAnswer& answer) {
  if (!answer.nearest) {
    return refusal(arguments, answer);
  }
  std::string text = formatted(
      "nothing fits; the least is {}, {} x {}, recomputing {}: {}",
      answer.runs[*answer.nearest].layout,
      answer.runs[*answer.nearest].batch_size,
      answer.runs[*answer.nearest].accumulate,
      answer.runs[*answer.nearest].recomputed.text(),
      answer.runs[*answer.nearest].problem);
  for (const PlannedChange& each : answer.changes) {
    text += formatted(
        "\n  fits with {}: {} of a device{}, {}{} s a step, {} {}/s: {}",
        each.change,
        gib_text(each.run.device_bytes),
        each.run.host_bytes > 0 ? formatted(
                                      " and {} of a rank's host memory",
                                      gib_text(each.run.host_bytes))
                                : "",
        each.is_fastest ? "" : "at most ",
        seconds_text(each.run.time.total()),
        std::lround(each.run.tokens_per_s),
        counted_in(each.run),
        joined(each.run.changed));
  }
  if (arguments.as_given) {
    text += "\nleave out --as-given to try other layouts";
  } else if (answer.changes.empty()) {
    text +=
        "\nneither host memory, more devices nor shorter sequences are enough; use a smaller model, or adapters (--lora)";
  }
  return text;
}

nlohmann::ordered_json json_of(const PlannedChange& change) {
  return {{"change", change.change}, {"run", json_of(change.run)}};
}

nlohmann::ordered_json json_of(
    const PlanAnswer& answer,
    const PlanArguments& arguments,
    const Machine& machine) {
  nlohmann::ordered_json json{
      {"best", nullptr},
      {"command", nullptr},
      {"given_overrides", arguments.overrides},
      {"room_bytes", machine.available_bytes()},
      {"margin_bytes", machine.margin_bytes},
      {"dry_runs", answer.dry_runs},
      {"examples", answer.examples},
      {"given_examples", answer.given_examples},
      {"runs", nlohmann::ordered_json::array()},
      {"lifted", nullptr},
      {"changes", nlohmann::ordered_json::array()}};
  for (const PlannedRun& run : answer.runs) {
    json["runs"].push_back(json_of(run));
  }
  if (answer.best) {
    json["best"] = *answer.best;
    json["command"] =
        command_of(arguments, machine, answer.best_run()->changed);
  }
  if (answer.lifted) {
    json["lifted"] = json_of(*answer.lifted);
  }
  for (const PlannedChange& change : answer.changes) {
    json["changes"].push_back(json_of(change));
  }
  return json;
}

/// Before a search, whose result would be lost.
void check_can_write(const char* option, const std::string& file) {
  if (file.empty()) {
    return;
  }
  namespace fs = std::filesystem;
  TESSERA_CHECK(
      !fs::is_directory(file),
      "{} is '{}', which is a folder; name a file in it",
      option,
      file);
  fs::path folder = fs::absolute(file).parent_path();
  while (!fs::exists(folder)) {
    folder = folder.parent_path();
  }
  TESSERA_CHECK(
      fs::is_directory(folder) && ::access(folder.c_str(), W_OK) == 0,
      "{} is '{}', but nothing can be written in '{}'; name another file",
      option,
      file,
      folder.string());
}

void make_folder_of(const std::string& file) {
  if (!file.empty()) {
    std::filesystem::create_directories(
        std::filesystem::absolute(file).parent_path());
  }
}

/// What is written extends what was read.
void check_replaces_no_source(
    const char* option,
    const std::string& file,
    const std::string& config) {
  if (!std::filesystem::exists(file)) {
    return;
  }
  runtime::read_config_file(
      config, {}, [&](nlohmann::json&, const std::filesystem::path& source) {
        TESSERA_CHECK(
            !std::filesystem::equivalent(source, file),
            "{} is '{}', which {}; name another file",
            option,
            file,
            std::filesystem::equivalent(config, file)
                ? "is the configuration that is planned"
                : formatted("'{}' extends", config));
      });
}

void check_can_write(const PlanArguments& arguments) {
  for (const auto& [option, file] :
       {std::pair{"--write", arguments.write},
        std::pair{"--report", arguments.report}}) {
    check_can_write(option, file);
    check_replaces_no_source(option, file, arguments.config);
  }
}

int plan(const PlanArguments& arguments) {
  check_can_write(arguments);
  make_folder_of(arguments.write);
  make_folder_of(arguments.report);
  PlanSearch search;
  search.read = tasks::read_training_run(arguments.config);
  search.overrides = arguments.overrides;
  search.machine = machine_of(arguments);
  search.as_given = arguments.as_given;
  std::optional<SearchProgress> progress;
  if (!arguments.as_json) {
    search.progress = std::ref(progress.emplace());
  }
  const PlanAnswer answer = search_plans(search);
  if (progress) {
    progress->finish();
  }
  const PlannedRun* best = answer.best_run();
  if (arguments.as_json) {
    std::printf(
        "%s\n", json_of(answer, arguments, search.machine).dump(2).c_str());
  } else {
    if (best != nullptr) {
      print_answer(arguments, search.machine, *best);
      print_examples(answer, search.machine);
      print_roomier(answer, search.machine);
    }
    print_lifted(answer);
    print_table(answer);
    if (best != nullptr) {
      print_best(answer);
    }
    std::fflush(stdout);
  }
  TESSERA_CHECK(best != nullptr, "{}", remedy(arguments, answer));
  if (!arguments.report.empty()) {
    write_report(arguments.report, *best, search.machine);
  }
  if (!arguments.write.empty()) {
    write_config(arguments, *best);
  }
  return 0;
}

/// Predicts the operators of a step of the configuration as it is, by pipeline
/// stage.
void print_operators(const PlanArguments& arguments) {
  const tasks::TrainingConfig config = tasks::read_training_config(
      arguments.config,
      arguments.overrides,
      nullptr,
      tasks::HubFiles::kDescriptions);
  const planner::DeviceRates rates =
      rates_of(arguments, planner::RateUse::kKernels);
  std::vector<StepMemoryPlan> stages = tasks::plan_training(
      config, arguments.devices, /*rank=*/0, type_of(arguments));
  const std::optional<std::string> assumed = planner::assumed_rate(rates);
  nlohmann::ordered_json json{{"stages", nlohmann::ordered_json::array()}};
  for (size_t stage = 0; stage < stages.size(); ++stage) {
    const planner::StepPrediction prediction =
        planner::predict_step(stages[stage], arguments.kind, rates);
    if (assumed) {
      stages[stage].assumptions.push_back(*assumed);
    }
    if (arguments.as_json) {
      json["stages"].push_back(planner::prediction_json(prediction));
      json["stages"].back()["assumed"] = stages[stage].assumptions;
      continue;
    }
    if (stages.size() > 1) {
      std::printf("pipeline stage %zu\n", stage);
    }
    std::printf("%s", planner::prediction_table(prediction).c_str());
    for (const std::string& assumption : stages[stage].assumptions) {
      std::printf("assumed: %s\n", assumption.c_str());
    }
  }
  if (arguments.as_json) {
    std::printf("%s\n", json.dump(2).c_str());
  }
}

Simulation simulation_of(const PlanArguments& arguments) {
  Simulation simulation;
  simulation.config = arguments.config;
  simulation.overrides = arguments.overrides;
  simulation.world_size = arguments.simulated_world;
  simulation.rank = arguments.simulated_rank;
  simulation.steps = arguments.steps;
  simulation.as_json = arguments.as_json;
  TESSERA_CHECK(
      simulation.rank < simulation.world_size,
      "--simulate-rank is {}, but --simulate-world has {} ranks, counted from 0",
      simulation.rank,
      simulation.world_size);
  if (!arguments.memory_cap.empty()) {
    simulation.memory_cap = bytes_of("--memory-cap", arguments.memory_cap);
  }
  return simulation;
}

} // namespace

int run_plan(int argc, char** argv) {
  CLI::App app(
      "Plans a run of `tessera train` on any machine, by running it with shapes "
      "only: memory over a step, what fits, which layout is estimated to be the "
      "fastest, and why the others are not. Needs the model's config.json, "
      "neither weights nor data nor devices",
      "tessera plan");
  PlanArguments arguments;
  app.add_option("config", arguments.config, "The configuration")->required();
  app.add_option(
      "overrides", arguments.overrides, "key.path=value of the configuration");
  auto* devices =
      app.add_option(
             "--devices", arguments.devices, "Devices of the job, a rank each")
          ->check(CLI::Range(1, 1 << 20));
  app.add_option(
         "--devices-per-node",
         arguments.devices_per_node,
         "Devices of a node; default 8")
      ->check(CLI::Range(1, 1024));
  auto* device_memory = app.add_option(
      "--device-memory",
      arguments.device_memory,
      "Memory of a device, e.g. 40GiB; required but for --simulate-world and "
      "--operators");
  app.add_option(
      "--host-memory",
      arguments.host_memory,
      "Memory of a node that its ranks may use together, e.g. 900GiB; default: "
      "with neither --devices nor --device this machine's, else none, so that "
      "nothing is moved there but what the configuration places there");
  auto* nvme_memory = app.add_option(
      "--nvme-memory",
      arguments.nvme_memory,
      "Memory of a node's NVMe disks, e.g. 1TiB, for what host memory has no "
      "room for");
  app.add_option(
         "--nvme-path",
         arguments.nvme_path,
         "Folder on such a disk, for the command that is printed; default .")
      ->needs(nvme_memory);
  app.add_option(
      "--reserve",
      arguments.reserve,
      "Part of a device's memory for CUDA, NCCL and cuBLAS; default 1.5GiB, on "
      "CPUs 0");
  app.add_option(
      "--margin",
      arguments.margin,
      "Part of a device's memory that a plan leaves free besides, e.g. 1GiB "
      "or 5%; default 3% of it");
  auto* kind = app.add_option(
      "--device",
      arguments.kind,
      "Kind of device: v100, a100, h100, h200, rtx2080ti, rtx3090, rtx4090, cpu; "
      "default a100. Its rates are usual ones");
  app.add_option(
         "--bandwidths",
         arguments.bandwidths,
         "File of `tessera bench --json` or `tessera bench comm --output` with "
         "rates measured there; several times for several")
      ->allow_extra_args(false);
  app.add_option(
         "--rate",
         arguments.rates,
         "KEY=NUMBER: a rate, e.g. flops_16bit=2e14, in_node=2e11, "
         "between_nodes=2e10, device_memory=1e12, host_update=1e11; of the CPU "
         "flops_32bit, with cpu_matmul=bfloat16 flops_rounded")
      ->allow_extra_args(false);
  int lora_rank = 0;
  auto* lora = app.add_flag(
      "--lora{16}",
      lora_rank,
      "Plan adapters on all linear layers (model.lora) for a configuration that "
      "has none; --lora=8 has rank 8, without a number 16");
  lora->check(CLI::Range(1, 1 << 20));
  app.add_flag(
      "--as-given",
      arguments.as_given,
      "Plan the layout of the configuration only");
  auto* operators = app.add_flag(
      "--operators",
      arguments.operators,
      "Print what the operators of a step of the configuration as it is take "
      "at least: calls, operations, bytes, milliseconds at the rates of large "
      "kernels");
  app.add_option(
      "--write",
      arguments.write,
      "File for a configuration that extends the given one by the best layout");
  app.add_option(
      "--report", arguments.report, "HTML file with a picture of memory");
  app.add_flag("--json", arguments.as_json, "Print one JSON object");
  auto* world =
      app.add_option(
             "--simulate-world",
             arguments.simulated_world,
             "Train a rank of a job of so many ranks with numbers, on "
             "this machine and as the configuration is; the other "
             "ranks are simulated. Prints what was planned and what "
             "was measured")
          ->check(CLI::Range(1, 1 << 20))
          ->excludes(device_memory)
          ->excludes(operators);
  app.add_option("--simulate-rank", arguments.simulated_rank, "Default 0")
      ->check(CLI::NonNegativeNumber)
      ->needs(world);
  app.add_option(
         "--memory-cap",
         arguments.memory_cap,
         "Memory for tensors on the device in --simulate-world, e.g. 11GiB")
      ->needs(world);
  app.add_option("--steps", arguments.steps, "Of --simulate-world; default 2")
      ->check(CLI::Range(1, 1 << 20))
      ->needs(world);
  const auto complete = [&] {
    arguments.is_for_this_machine = devices->count() == 0 && kind->count() == 0;
    if (lora->count() > 0) {
      arguments.lora_rank = lora_rank;
    }
    add_adapters(arguments);
  };
  const auto check = [&] {
    complete();
    if (arguments.simulated_world > 0) {
      simulation_of(arguments);
    } else if (arguments.operators) {
      rates_of(arguments, planner::RateUse::kKernels);
    } else {
      machine_of(arguments);
      check_can_write(arguments);
    }
    tasks::read_training_config(
        arguments.config,
        arguments.overrides,
        nullptr,
        tasks::HubFiles::kNoneOfDescriptions);
  };
  if (const auto code = parse_arguments(app, argc, argv, check)) {
    return *code;
  }
  complete();
  if (arguments.simulated_world > 0) {
    check_one_process("plan");
    run_simulation(simulation_of(arguments));
    return 0;
  }
  if (arguments.operators) {
    print_operators(arguments);
    return 0;
  }
  return plan(arguments);
}

} // namespace tessera::tools
