// SPDX-License-Identifier: Apache-2.0
#include "plan_binding.h"

#include "memory_names.h"
#include "module_tree.h"
#include "wrap_options.h"

#include "tessera/planner/search/module_plan.h"
#include "tessera/planner/step_plan.h"
#include "tessera/runtime/core/config.h"
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/json_text.h"
#include "tessera/runtime/profile/cpu_memory_counter.h"

#include <pybind11/stl.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>
#include <nlohmann/json.hpp>

#include <memory>
#include <optional>
#include <string>

namespace py = pybind11;

namespace tessera::python {

namespace {

/// The forward of a micro-batch runs on a thread of the plan.
template <typename... Arguments>
at::Tensor loss_from(const py::function& forward, Arguments... arguments) {
  const py::gil_scoped_acquire gil;
  const py::object loss = forward(arguments...);
  TESSERA_CHECK(
      THPVariable_Check(loss.ptr()),
      "plan: loss is a {}; it must be a tensor.",
      py::type::of(loss).attr("__name__").cast<std::string>());
  return loss.cast<at::Tensor>();
}

StepMemoryPlan plan_step(
    const std::shared_ptr<ModuleTree>& tree,
    const std::string& options,
    const std::string& source,
    const py::function& forward,
    PlannedJob job) {
  const WrapOptions wrap = read_wrap_options(options, source);
  job.parallel = wrap.parallel;
  const py::gil_scoped_release no_gil;
  return plan(
      *tree, wrap.engine, [&] { return loss_from(forward); }, job);
}

/// @param json as the arguments of tessera.plan().
PlanMachine read_machine(const std::string& json) {
  const runtime::ConfigReader reader(
      runtime::parse_json(json, "tessera.plan()"), "tessera.plan()");
  PlanMachine machine;
  reader.read([&](runtime::OptionFields& fields) {
    const runtime::IntRange counts{.min = 1, .max = int64_t{1} << 20};
    fields.field("world_size", machine.devices, counts, "");
    fields.field("devices_per_node", machine.devices_per_node, counts, "");
    fields.field("device", machine.device, "");
    fields.bytes(
        runtime::required("device_memory"), machine.device_bytes, 1, "");
    fields.bytes("reserve", machine.reserved_bytes, 0, "");
    fields.bytes("margin", machine.margin_bytes, 0, "");
    fields.bytes("host_memory", machine.host_bytes, 0, "");
    fields.bytes("nvme_memory", machine.nvme_bytes, 0, "");
    fields.field("nvme_path", machine.nvme_path, "");
  });
  reader.finish();
  return machine;
}

ModulePlan search_plan(
    const std::shared_ptr<ModuleTree>& tree,
    const std::string& options,
    const std::string& source,
    const py::function& loss,
    const py::function& prepare,
    PlannedModule training,
    const std::string& machine) {
  const WrapOptions wrap = read_wrap_options(options, source);
  TESSERA_CHECK(
      wrap.parallel.sizes == ParallelSizes(),
      "plan: {} divides the model by `parallel`, whose layouts the search for a module does not have; leave out device_memory to plan this one.",
      source);
  training.loss = [&](int64_t rows) { return loss_from(loss, rows); };
  training.prepare = [&](int64_t rows, int64_t layers) {
    const py::gil_scoped_acquire gil;
    prepare(rows, layers);
  };
  const PlanMachine on = read_machine(machine);
  const py::gil_scoped_release no_gil;
  return plan(*tree, wrap.engine, training, on);
}

void bind_search(py::module_& module) {
  py::class_<PlannedModule>(module, "PlannedModule")
      .def(
          py::init([](int64_t batch_size,
                      int64_t accumulate,
                      bool changes_rows,
                      bool clips_gradients,
                      int64_t layers,
                      int64_t recomputed_layers) {
            PlannedModule training;
            training.batch_size = batch_size;
            training.accumulate = accumulate;
            training.changes_rows = changes_rows;
            training.clips_gradients = clips_gradients;
            training.layers = layers;
            training.recomputed_layers = recomputed_layers;
            return training;
          }),
          py::kw_only(),
          py::arg("batch_size"),
          py::arg("accumulate"),
          py::arg("changes_rows"),
          py::arg("clips_gradients"),
          py::arg("layers"),
          py::arg("recomputed_layers"));
  py::class_<ModulePick>(module, "ModulePick")
      .def_readonly("batch_size", &ModulePick::batch_size)
      .def_readonly("accumulate", &ModulePick::accumulate)
      .def_readonly("recomputed_layers", &ModulePick::recomputed_layers)
      .def_readonly("changed", &ModulePick::changed)
      .def_readonly("device_bytes", &ModulePick::device_bytes)
      .def_readonly("host_bytes", &ModulePick::host_bytes)
      .def_readonly("nvme_bytes", &ModulePick::nvme_bytes)
      .def_readonly("step_seconds", &ModulePick::step_seconds)
      .def_readonly("rows_per_second", &ModulePick::rows_per_second)
      .def_readonly("problem", &ModulePick::problem)
      .def_readonly("step", &ModulePick::step);
  py::class_<ModuleChange>(module, "ModuleChange")
      .def_readonly("change", &ModuleChange::change)
      .def_readonly("pick", &ModuleChange::pick);
  py::class_<ModulePlan>(module, "ModulePlan")
      .def_readonly("picks", &ModulePlan::picks)
      .def_readonly("best", &ModulePlan::best)
      .def_readonly("nearest", &ModulePlan::nearest)
      .def_readonly("changes", &ModulePlan::changes)
      .def_readonly("limit_bytes", &ModulePlan::limit_bytes);
  module.def("search_plan", &search_plan);
}

void bind_planned_job(py::module_& module) {
  py::class_<PlannedJob>(module, "PlannedJob")
      .def(
          py::init([](int rank,
                      int world_size,
                      bool is_cuda,
                      int accumulate,
                      bool clips_gradients,
                      int steps) {
            PlannedJob job;
            job.rank = rank;
            job.world_size = world_size;
            job.device = is_cuda ? c10::kCUDA : c10::kCPU;
            job.accumulate = accumulate;
            job.clips_gradients = clips_gradients;
            job.steps = steps;
            return job;
          }),
          py::kw_only(),
          py::arg("rank"),
          py::arg("world_size"),
          py::arg("is_cuda"),
          py::arg("accumulate"),
          py::arg("clips_gradients"),
          py::arg("steps"));
}

void bind_plan_results(py::module_& module) {
  py::class_<MemoryMoment>(
      module, "MemoryMoment", "Planned memory at one moment of a step.")
      .def_readonly("module", &MemoryMoment::module)
      .def_readonly("operation", &MemoryMoment::operation)
      .def_property_readonly(
          "engine",
          [](const MemoryMoment& moment) {
            return bytes_by_purpose(moment.engine);
          })
      .def_readonly("activations", &MemoryMoment::activations)
      .def_property_readonly("total", &MemoryMoment::total);
  py::class_<OperatorWork>(module, "OperatorWork")
      .def_readonly("module", &OperatorWork::module)
      .def_readonly("name", &OperatorWork::name)
      .def_readonly("in_backward", &OperatorWork::in_backward)
      .def_readonly("calls", &OperatorWork::calls)
      .def_readonly("flops", &OperatorWork::flops)
      .def_readonly("bytes", &OperatorWork::bytes);
  py::class_<CollectiveWork>(module, "CollectiveWork")
      .def_readonly("communicator", &CollectiveWork::communicator)
      .def_readonly("kind", &CollectiveWork::kind)
      .def_readonly("ranks", &CollectiveWork::ranks)
      .def_readonly("calls", &CollectiveWork::calls)
      .def_readonly("bytes", &CollectiveWork::bytes);
  py::class_<StepMemoryPlan>(
      module, "StepMemoryPlan", "What one training step takes; see plan().")
      .def_property_readonly(
          "memory",
          [](const StepMemoryPlan& step) {
            return bytes_by_tier([&](MemoryTier tier) {
              return step.planned[static_cast<size_t>(tier)];
            });
          })
      .def_readonly(
          "activations_after_forward",
          &StepMemoryPlan::activations_after_forward)
      .def_readonly("peak_bytes", &StepMemoryPlan::peak_bytes)
      .def_readonly("peak", &StepMemoryPlan::peak)
      .def_readonly("timeline", &StepMemoryPlan::timeline)
      .def_readonly("operators", &StepMemoryPlan::operators)
      .def_readonly("kernels", &StepMemoryPlan::kernels)
      .def_readonly("collectives", &StepMemoryPlan::collectives)
      .def_readonly("assumptions", &StepMemoryPlan::assumptions)
      .def_property_readonly("flops", &StepMemoryPlan::flops);
}

} // namespace

void bind_plan(py::module_& module) {
  bind_planned_job(module);
  bind_plan_results(module);
  bind_search(module);
  module.def("plan", &plan_step);
  // What a plan is measured against on the CPU.
  module.def("count_cpu_bytes", &runtime::install_cpu_memory_counter);
  module.def("cpu_bytes_live", &runtime::cpu_bytes_live);
  module.def("cpu_bytes_peak", &runtime::cpu_bytes_peak);
  module.def("reset_cpu_bytes_peak", &runtime::reset_cpu_bytes_peak);
}

} // namespace tessera::python
