// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/launch/node_environment.h"

#include "tessera/runtime/core/error.h"

#include <charconv>
#include <system_error>

namespace tessera::runtime {

namespace {

class NodeVariables {
 public:
  explicit NodeVariables(const EnvironmentLookup& lookup) : lookup_(lookup) {
    const auto nodes = number("SLURM_STEP_NUM_NODES");
    const auto tasks = number("SLURM_STEP_NUM_TASKS");
    // With more tasks per node they are ranks; a batch script has no step.
    in_slurm_ = nodes && tasks && *nodes == *tasks;
  }

  std::optional<int> number(const char* name) const {
    const auto text = lookup_(name);
    if (!text || text->empty()) {
      return std::nullopt;
    }
    int value = 0;
    const char* const end = text->data() + text->size();
    const auto [stop, code] = std::from_chars(text->data(), end, value);
    TESSERA_CHECK(
        code == std::errc{} && stop == end && value >= 0,
        "the environment variable {} is '{}'; expected a number. Give the option of `tessera launch` instead, or unset it.",
        name,
        *text);
    return value;
  }
  std::optional<int> slurm_number(const char* name) const {
    return in_slurm_ ? number(name) : std::nullopt;
  }
  std::optional<std::string> text(const char* name) const {
    const auto value = lookup_(name);
    return value && !value->empty() ? value : std::nullopt;
  }
  std::optional<std::string> slurm_master() const {
    const auto nodes = in_slurm_ ? text("SLURM_STEP_NODELIST") : std::nullopt;
    return nodes ? std::optional(first_slurm_host(*nodes)) : std::nullopt;
  }
  std::optional<int> slurm_port() const {
    const auto job = slurm_number("SLURM_JOB_ID");
    const auto step = slurm_number("SLURM_STEP_ID");
    return job && step ? std::optional(slurm_port_of(*job, *step))
                       : std::nullopt;
  }

 private:
  const EnvironmentLookup& lookup_;
  bool in_slurm_ = false;
};

template <typename T>
void set_unless_given(std::optional<T>& target, std::optional<T> value) {
  if (!target) {
    target = std::move(value);
  }
}

} // namespace

LaunchVariables complete_launch_variables(
    LaunchVariables result,
    const EnvironmentLookup& lookup) {
  const NodeVariables variables(lookup);
  set_unless_given(result.nproc, variables.number("PET_NPROC_PER_NODE"));
  set_unless_given(result.nnodes, variables.number("PET_NNODES"));
  set_unless_given(
      result.nnodes, variables.slurm_number("SLURM_STEP_NUM_NODES"));
  set_unless_given(result.nnodes, std::optional(1));
  if (*result.nnodes == 1) {
    set_unless_given(result.node_rank, std::optional(0));
    return result;
  }
  set_unless_given(result.node_rank, variables.number("PET_NODE_RANK"));
  set_unless_given(result.node_rank, variables.slurm_number("SLURM_NODEID"));
  set_unless_given(result.node_rank, variables.number("JOB_COMPLETION_INDEX"));
  for (const char* name : {"PET_MASTER_ADDR", "MASTER_ADDR"}) {
    set_unless_given(result.master_addr, variables.text(name));
  }
  set_unless_given(result.master_addr, variables.slurm_master());
  for (const char* name : {"PET_MASTER_PORT", "MASTER_PORT"}) {
    set_unless_given(result.master_port, variables.number(name));
  }
  set_unless_given(result.master_port, variables.slurm_port());
  constexpr int kTorchrunsPort = 29500;
  set_unless_given(result.master_port, std::optional(kTorchrunsPort));
  TESSERA_CHECK(
      result.node_rank.has_value(),
      "the job has {} nodes, but the number of this one is unknown; give --node-rank 0 to {}",
      *result.nnodes,
      *result.nnodes - 1);
  TESSERA_CHECK(
      result.master_addr.has_value(),
      "the job has {} nodes, but the address of node 0 is unknown; give --master-addr, the same on all nodes",
      *result.nnodes);
  return result;
}

} // namespace tessera::runtime
