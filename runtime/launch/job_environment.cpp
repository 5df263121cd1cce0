// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/launch/job_environment.h"

#include "tessera/runtime/core/error.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <system_error>

namespace tessera::runtime {

namespace {

using Variables = std::map<std::string, std::string>;

constexpr const char* kDefaultPort = "29500"; // torchrun's
constexpr std::int64_t kFirstSlurmPort = 15000;
constexpr std::int64_t kSlurmPorts = 15000;

std::int64_t number_in(std::string_view text, const std::string& where) {
  std::int64_t value = 0;
  const auto [stop, code] =
      std::from_chars(text.data(), text.data() + text.size(), value);
  TESSERA_CHECK(
      code == std::errc{} && stop == text.data() + text.size() && value >= 0,
      "{} contains '{}' where a number is expected.",
      where,
      text);
  return value;
}

class Translation {
 public:
  explicit Translation(const EnvironmentLookup& lookup) : lookup_(lookup) {}

  Variables run() {
    if (lookup_("RANK") || lookup_("WORLD_SIZE")) {
      return {};
    }
    // mpirun may start its own helpers with srun; the numbers of the step are
    // then those of the helpers, so MPI's variables come first. srun may also
    // provide PMI, but only its own variables say which tasks are on this node.
    if (lookup_("OMPI_COMM_WORLD_RANK")) {
      take(
          "Open MPI",
          "OMPI_COMM_WORLD_RANK",
          "OMPI_COMM_WORLD_SIZE",
          "OMPI_COMM_WORLD_LOCAL_RANK",
          "OMPI_COMM_WORLD_LOCAL_SIZE");
      meet_by_mpi("Open MPI");
    } else if (lookup_("PMI_RANK") && lookup_("MPI_LOCALRANKID")) {
      take(
          "MPICH",
          "PMI_RANK",
          "PMI_SIZE",
          "MPI_LOCALRANKID",
          "MPI_LOCALNRANKS");
      meet_by_mpi("MPICH");
    } else if (lookup_("SLURM_STEP_NUM_TASKS")) {
      // A batch script has no step and is not a rank of the job.
      take_slurm();
    } else if (lookup_("PMI_RANK")) {
      // The distribution over nodes is unknown; assume one node, as when
      // LOCAL_RANK is missing.
      take("the PMI launcher", "PMI_RANK", "PMI_SIZE", "PMI_RANK", "PMI_SIZE");
      meet_by_mpi("the PMI launcher");
    }
    return result_;
  }

 private:
  std::string require(const char* name, const char* launcher) const {
    const auto value = lookup_(name);
    TESSERA_CHECK(
        value.has_value(),
        "the environment variable {} is not set although {} started this process. Start it with `tessera launch` or torchrun, or set RANK, WORLD_SIZE, LOCAL_RANK and MASTER_ADDR.",
        name,
        launcher);
    number_in(*value, std::string("the environment variable ") + name);
    return *value;
  }

  void take(
      const char* launcher,
      const char* rank,
      const char* size,
      const char* local_rank,
      const char* local_size) {
    result_["RANK"] = require(rank, launcher);
    result_["WORLD_SIZE"] = require(size, launcher);
    result_["LOCAL_RANK"] = require(local_rank, launcher);
    result_["LOCAL_WORLD_SIZE"] = require(local_size, launcher);
  }

  void meet_by_mpi(const char* launcher) {
    if (!lookup_("MASTER_ADDR")) {
      TESSERA_CHECK(
          result_["WORLD_SIZE"] == result_["LOCAL_WORLD_SIZE"],
          "{} started {} ranks, {} of them on this node, but does not say where rank 0 runs: set MASTER_ADDR to its host name on all ranks.",
          launcher,
          result_["WORLD_SIZE"],
          result_["LOCAL_WORLD_SIZE"]);
      result_["MASTER_ADDR"] = "127.0.0.1";
    }
    set_port(kDefaultPort);
  }

  void take_slurm() {
    constexpr const char* kLauncher = "srun";
    const std::string node = require("SLURM_NODEID", kLauncher);
    result_["RANK"] = require("SLURM_PROCID", kLauncher);
    result_["WORLD_SIZE"] = require("SLURM_STEP_NUM_TASKS", kLauncher);
    result_["LOCAL_RANK"] = require("SLURM_LOCALID", kLauncher);
    const auto tasks = lookup_("SLURM_STEP_TASKS_PER_NODE");
    const auto nodes = lookup_("SLURM_STEP_NODELIST");
    TESSERA_CHECK(
        tasks && nodes,
        "srun started this process without SLURM_STEP_TASKS_PER_NODE or SLURM_STEP_NODELIST; set RANK, WORLD_SIZE, LOCAL_RANK and MASTER_ADDR.");
    result_["LOCAL_WORLD_SIZE"] = std::to_string(slurm_tasks_on_node(
        *tasks, static_cast<int>(number_in(node, "SLURM_NODEID"))));
    if (!lookup_("MASTER_ADDR")) {
      result_["MASTER_ADDR"] = first_slurm_host(*nodes);
    }
    const std::int64_t job =
        number_in(require("SLURM_JOB_ID", kLauncher), "SLURM_JOB_ID");
    const std::int64_t step =
        number_in(require("SLURM_STEP_ID", kLauncher), "SLURM_STEP_ID");
    set_port(std::to_string(slurm_port_of(job, step)));
  }

  void set_port(const std::string& port) {
    if (!lookup_("MASTER_PORT")) {
      result_["MASTER_PORT"] = port;
    }
  }

  const EnvironmentLookup& lookup_;
  Variables result_;
};

} // namespace

std::map<std::string, std::string> translated_job_environment(
    const EnvironmentLookup& lookup) {
  return Translation(lookup).run();
}

void adopt_job_environment() {
  const auto variables = translated_job_environment(
      [](const std::string& name) -> std::optional<std::string> {
        const char* value = std::getenv(name.c_str());
        return value ? std::optional<std::string>(value) : std::nullopt;
      });
  for (const auto& [name, value] : variables) {
    ::setenv(name.c_str(), value.c_str(), 1);
  }
}

std::string first_slurm_host(const std::string& node_list) {
  const std::size_t end = node_list.find_first_of("[,");
  std::string host = node_list.substr(0, end);
  if (end != std::string::npos && node_list[end] == '[') {
    const std::size_t first_end = node_list.find_first_of(",-]", end);
    const std::size_t close = node_list.find(']', end);
    TESSERA_CHECK(
        close != std::string::npos,
        "SLURM_STEP_NODELIST is '{}', a list with an unclosed bracket; set MASTER_ADDR.",
        node_list);
    host += node_list.substr(end + 1, first_end - end - 1);
    host += node_list.substr(
        close + 1, node_list.find_first_of("[,", close) - close - 1);
  }
  return host;
}

int slurm_port_of(std::int64_t job, std::int64_t step) {
  return static_cast<int>(kFirstSlurmPort + (job + step) % kSlurmPorts);
}

int slurm_tasks_on_node(const std::string& tasks_per_node, int node) {
  const std::string where = "SLURM_STEP_TASKS_PER_NODE";
  int left = node;
  for (std::size_t begin = 0; begin < tasks_per_node.size();) {
    const std::size_t end =
        std::min(tasks_per_node.find(',', begin), tasks_per_node.size());
    const std::string_view item =
        std::string_view(tasks_per_node).substr(begin, end - begin);
    const std::size_t times = item.find("(x");
    std::int64_t nodes = 1;
    if (times != std::string_view::npos && item.back() == ')') {
      nodes = number_in(item.substr(times + 2, item.size() - times - 3), where);
    }
    if (left < nodes) {
      return static_cast<int>(number_in(item.substr(0, times), where));
    }
    left -= static_cast<int>(nodes);
    begin = end + 1;
  }
  TESSERA_FAIL(
      "{} is '{}', which has no entry for node {} (SLURM_NODEID).",
      where,
      tasks_per_node,
      node);
}

} // namespace tessera::runtime
