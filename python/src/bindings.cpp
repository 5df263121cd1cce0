// SPDX-License-Identifier: Apache-2.0
// The extension module tessera._C: the engine as the Python package calls it.
// Everything that may wait for other ranks, disks or devices runs without the
// GIL.

#include "engine_handle.h"
#include "memory_names.h"
#include "module_tree.h"
#include "plan_binding.h"
#include "python_state.h"
#include "wrap_options.h"

#include "tessera/engine/data/sample_order.h"
#include "tessera/engine/full_values.h"
#include "tessera/runtime/core/error.h"
#include "tessera/sharding/interception/page_key.h"
#include "tessera/sharding/interception/paged_storage.h"
#include "tessera/sharding/lazy/lazy.h"
#include "tessera/sharding/paging/pager.h"
#include "tessera/sharding/paging/pager_statistics.h"
#include "tessera/sharding/tensor_parallel/divided_weight.h"
#include "tessera/sharding/tensor_parallel/dtensor_rules.h"

#include <pybind11/stl.h>
#include <pybind11/stl/filesystem.h>
#include <torch/csrc/utils/pybind.h>

#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace py = pybind11;

namespace tessera::python {

namespace {

using ReleaseGil = py::call_guard<py::gil_scoped_release>;

/// As torch's load_state_dict() has them: buffers too.
std::vector<std::string> missing_of(const LoadWeightsReport& report) {
  std::vector<std::string> names = report.missing;
  names.insert(
      names.end(),
      report.missing_buffers.begin(),
      report.missing_buffers.end());
  return names;
}

/// Joins the job of `store`, or else the one that the environment describes.
World& join(
    const std::optional<c10::intrusive_ptr<c10d::Store>>& store,
    int rank,
    int size,
    const std::string& options) {
  const engine::DeviceOptions device =
      read_device_options(options, "tessera.init()");
  if (store) {
    init_with_store(*store, rank, size, engine::init_options(device));
  }
  return engine::init_on(device); // joins only once
}

/// A pattern of module names, a division, and the unit.
using PlanEntry = std::tuple<std::string, std::string, int64_t>;

TensorPlan plan_of(const std::vector<PlanEntry>& entries) {
  static const std::map<std::string, TensorDivision> kDivisions{
      {"column", TensorDivision::kColumn},
      {"column_gathered", TensorDivision::kColumnGathered},
      {"row", TensorDivision::kRow},
      {"vocab", TensorDivision::kVocab}};
  TensorPlan plan;
  for (const auto& [pattern, name, unit] : entries) {
    const auto found = kDivisions.find(name);
    TESSERA_CHECK(
        found != kDivisions.end(),
        "wrap: tensor_plan divides '{}' by '{}'; it must be 'column', 'column_gathered', 'row' or 'vocab'.",
        pattern,
        name);
    plan.push_back({pattern, found->second, unit});
  }
  return plan;
}

/// A GatherScope or EmaScope as a Python context manager.
template <typename Scope>
class ScopeContext {
 public:
  ScopeContext(
      std::shared_ptr<EngineHandle> handle,
      std::function<Scope(Engine&)> open)
      : handle_(std::move(handle)), open_(std::move(open)) {}

  void enter() {
    scope_.emplace(open_(handle_->engine()));
  }
  /// @throws tessera::Error outside of the scope.
  Scope& scope() {
    TESSERA_CHECK(scope_.has_value(), "the scope has not begun, or has ended.");
    return *scope_;
  }
  /// @param fails whether an error ends it.
  void exit(bool fails) {
    if constexpr (std::is_same_v<Scope, GatherScope>) {
      if (!fails && scope_) {
        scope_->commit();
      }
    }
    scope_.reset();
  }

 private:
  std::shared_ptr<EngineHandle> handle_;
  std::function<Scope(Engine&)> open_;
  std::optional<Scope> scope_;
};

template <typename Scope>
py::class_<ScopeContext<Scope>> bind_scope(
    py::module_& module,
    const char* name) {
  using Context = ScopeContext<Scope>;
  return py::class_<Context>(module, name)
      .def("__enter__", &Context::enter, ReleaseGil())
      .def("__exit__", [](Context& context, const py::args& error) {
        const bool fails = !error.empty() && !error[0].is_none();
        const py::gil_scoped_release no_gil;
        context.exit(fails);
      });
}

/// Checkpointables of Python objects, while a checkpoint is written or read.
using States = std::vector<std::shared_ptr<PythonState>>;

std::vector<Checkpointable*> pointers(const States& states) {
  std::vector<Checkpointable*> result;
  for (const auto& state : states) {
    result.push_back(state.get());
  }
  return result;
}

void bind_job(py::module_& module) {
  py::class_<World, std::unique_ptr<World, py::nodelete>>(module, "World")
      .def_property_readonly("rank", &World::rank)
      .def_property_readonly("size", &World::size)
      .def_property_readonly("local_rank", &World::local_rank)
      .def_property_readonly("local_size", &World::local_size)
      .def_property_readonly("device", &World::device);
  module.def(
      "init",
      &join,
      py::arg("store"),
      py::arg("rank"),
      py::arg("size"),
      py::arg("options"),
      py::return_value_policy::reference,
      ReleaseGil());
  module.def("use_default_operators", [] { // of the CPU
    engine::use_operators(engine::DeviceOptions(), at::kCPU);
  });
}

void bind_modules(py::module_& module) {
  py::class_<ModuleTree, std::shared_ptr<ModuleTree>>(module, "ModuleTree")
      .def(
          py::init([](const std::string& type, const std::string& role) {
            const auto known = [&](const char* name) { return role == name; };
            return std::make_shared<ModuleTree>(sharding::ModuleKind{
                type,
                known("container")   ? sharding::ModuleRole::kContainer
                : known("embedding") ? sharding::ModuleRole::kEmbedding
                : known("linear")    ? sharding::ModuleRole::kLinear
                                     : sharding::ModuleRole::kOther});
          }),
          py::arg("type"),
          py::arg("role"))
      .def("clear", &ModuleTree::clear)
      .def("add_parameter", &ModuleTree::add_parameter)
      .def("set_buffer", &ModuleTree::set_buffer)
      .def("add_module", &ModuleTree::add_module);

  py::class_<LazyScope>(module, "LazyScope")
      .def(
          py::init([](std::optional<uint64_t> seed) {
            LazyOptions options;
            options.seed = seed;
            return std::make_unique<LazyScope>(options);
          }),
          py::arg("seed"))
      .def("finish", [](LazyScope& scope, const ModuleTree& tree) {
        scope.finish(tree);
      });
  module.def(
      "materialize",
      [](const ModuleTree& tree) { materialize(tree); },
      ReleaseGil());
  // Whether an engine has the parameter; ignored ones are whole.
  module.def("is_sharded", [](const at::Tensor& parameter) {
    return sharding::has_page_key(parameter);
  });
}

void bind_checkpoints(py::module_& module) {
  py::class_<PythonState, std::shared_ptr<PythonState>>(module, "State")
      .def(py::init([](std::string name,
                       bool per_rank,
                       bool optional,
                       py::function save,
                       py::function load) {
        return std::make_shared<PythonState>(
            std::move(name),
            per_rank,
            optional,
            [save] {
              auto [values, tensors] =
                  save()
                      .cast<std::pair<
                          std::string,
                          std::map<std::string, at::Tensor>>>();
              return StateParts{std::move(values), std::move(tensors)};
            },
            [load](const StateParts& parts) {
              load(parts.values, parts.tensors);
            });
      }));
  py::class_<PendingSave>(module, "PendingSave")
      .def("is_done", &PendingSave::is_done)
      .def("wait", &PendingSave::wait, ReleaseGil());
  py::class_<LoadWeightsReport>(module, "LoadWeightsReport")
      .def_property_readonly("missing", &missing_of)
      .def_readonly("unexpected", &LoadWeightsReport::unexpected)
      .def("__repr__", [](const LoadWeightsReport& report) {
        return py::str("LoadWeightsReport(missing={!r}, unexpected={!r})")
            .format(missing_of(report), report.unexpected);
      });
}

void bind_engine(py::module_& module) {
  bind_scope<GatherScope>(module, "Gather")
      .def(
          "full",
          [](ScopeContext<GatherScope>& context, const at::Tensor& parameter) {
            return context.scope().full(parameter);
          },
          ReleaseGil());
  module.def(
      "name_without_lasting_memory",
      [](const at::Tensor& tensor) -> std::optional<std::string> {
        if (!sharding::has_page_key(tensor) || !tensor.has_storage()) {
          return std::nullopt;
        }
        const auto* storage =
            sharding::PagedStorage::of(tensor.storage().unsafeGetStorageImpl());
        const auto* pager =
            storage == nullptr
                ? nullptr
                : dynamic_cast<const sharding::Pager*>(storage->page().handler);
        return pager == nullptr ||
                       pager->has_lasting_memory(storage->page().number)
                   ? std::nullopt
                   : std::optional(storage->parameter_name());
      });
  module.def(
      "check_no_part",
      [](const at::Tensor& tensor, const std::string& function) {
        sharding::check_records_no_weight(tensor, function.c_str());
      });
  module.def("full_sizes", [](const at::Tensor& parameter) {
    const auto* division = engine::division_of(parameter);
    return division == nullptr ? parameter.sizes().vec() : division->spec.sizes;
  });
  bind_scope<EmaScope>(module, "Ema");

  using Handle = EngineHandle;
  py::class_<Handle, std::shared_ptr<Handle>>(module, "Engine")
      .def(
          py::init([](std::shared_ptr<ModuleTree> tree,
                      const std::string& options,
                      const std::string& source,
                      const std::vector<PlanEntry>& plan) {
            return std::make_shared<Handle>(
                std::move(tree),
                read_wrap_options(options, source),
                plan_of(plan));
          }),
          ReleaseGil())
      .def("close", &Handle::close, ReleaseGil())
      .def(
          "batches",
          [](const Handle& handle) {
            const BatchShare share = handle.batches();
            return std::pair(share.index, share.count);
          })
      .def(
          "backward",
          [](Handle& handle, const at::Tensor& loss) {
            handle.engine().backward(loss);
          },
          ReleaseGil())
      .def(
          "step",
          [](Handle& handle) { return handle.engine().step(); },
          ReleaseGil())
      .def(
          "zero_grad",
          [](Handle& handle) { handle.engine().zero_grad(); },
          ReleaseGil())
      .def(
          "clip_grad_norm",
          [](Handle& handle, double max_norm, double p) {
            return handle.engine().clip_grad_norm(max_norm, p).value();
          },
          ReleaseGil())
      .def(
          "grad_norm",
          [](Handle& handle, double p) {
            return handle.engine().grad_norm(p).value();
          },
          ReleaseGil())
      .def(
          "clip_grad_value",
          [](Handle& handle, double limit) {
            handle.engine().clip_grad_value(limit);
          },
          ReleaseGil())
      .def(
          "multiply_gradients",
          [](Handle& handle, double factor) {
            handle.engine().multiply_gradients(factor);
          },
          ReleaseGil())
      .def(
          "reduce",
          [](Handle& handle,
             const at::Tensor& parameter,
             const at::Tensor& gradient) {
            handle.engine().reduce(parameter, gradient);
          },
          ReleaseGil())
      .def(
          "grad",
          [](Handle& handle,
             const at::Tensor& parameter) -> std::optional<at::Tensor> {
            const at::Tensor gradient = handle.engine().grad(parameter);
            return gradient.defined() ? std::optional(gradient) : std::nullopt;
          },
          ReleaseGil())
      .def(
          "gather",
          [](const std::shared_ptr<Handle>& handle,
             const std::optional<std::vector<at::Tensor>>& parameters,
             bool writable) {
            return std::make_unique<ScopeContext<GatherScope>>(
                handle, [parameters, writable](Engine& engine) {
                  return parameters ? engine.gather(
                                          *parameters, {.writable = writable})
                                    : engine.gather({.writable = writable});
                });
          })
      .def(
          "ema",
          [](const std::shared_ptr<Handle>& handle) {
            return std::make_unique<ScopeContext<EmaScope>>(
                handle, [](Engine& engine) { return engine.ema(); });
          })
      .def(
          "for_each_parameter",
          [](Handle& handle, const py::function& visit, bool writable) {
            handle.engine().for_each_parameter(
                [&](const std::string& name, const at::Tensor& value) {
                  const py::gil_scoped_acquire gil;
                  visit(name, value);
                },
                writable);
          },
          ReleaseGil())
      .def(
          "tensor_names",
          [](Handle& handle) {
            std::vector<std::vector<std::string>> names;
            for (const ModelTensor& tensor : handle.list_tensors().tensors()) {
              names.push_back(tensor.spec.names);
            }
            return names;
          },
          ReleaseGil())
      .def(
          "read",
          [](Handle& handle, size_t index) -> std::optional<at::Tensor> {
            const at::Tensor value = handle.read(index);
            return value.defined() ? std::optional(value) : std::nullopt;
          },
          ReleaseGil())
      .def(
          "save",
          [](Handle& handle,
             const std::filesystem::path& folder,
             const States& states,
             int keep_last) {
            return handle.engine().save(folder, pointers(states), keep_last);
          },
          ReleaseGil())
      .def(
          "save_in_background",
          [](Handle& handle,
             const std::filesystem::path& folder,
             const States& states,
             int keep_last) {
            return handle.engine().save_in_background(
                folder, pointers(states), keep_last);
          },
          ReleaseGil())
      .def(
          "load",
          [](Handle& handle,
             const std::filesystem::path& path,
             const States& states) {
            return handle.engine().load(path, pointers(states));
          },
          ReleaseGil())
      .def(
          "load_weights",
          [](Handle& handle, const std::filesystem::path& path, bool strict) {
            LoadWeightsOptions options;
            options.strict = strict;
            return handle.engine().load_weights(path, options);
          },
          ReleaseGil())
      .def(
          "save_weights",
          [](Handle& handle, const std::filesystem::path& path) {
            handle.engine().save_weights(path);
          },
          ReleaseGil())
      .def(
          "unwrap",
          [](Handle& handle) { handle.engine().unwrap(); },
          ReleaseGil())
      .def(
          "check_same_values",
          [](Handle& handle,
             const std::string& function,
             const std::vector<std::pair<std::string, at::Tensor>>& values) {
            handle.engine().check_same_values(function, values);
          },
          ReleaseGil())
      .def(
          "sum_over_ranks",
          [](Handle& handle, const at::Tensor& values) {
            handle.engine().sum_over_ranks(values);
          },
          ReleaseGil())
      .def_property_readonly(
          "lineage", [](Handle& handle) { return handle.engine().lineage(); })
      .def_property(
          "learning_rate",
          [](Handle& handle) { return handle.engine().learning_rate(); },
          [](Handle& handle, double lr) {
            handle.engine().set_learning_rate(lr);
          })
      .def(
          "trained_parameters",
          [](Handle& handle) { return handle.engine().trained_parameters(); })
      .def(
          "set_parameter_options",
          [](Handle& handle,
             const std::vector<at::Tensor>& parameters,
             const std::string& optimizer,
             const std::string& source,
             double lr_scale,
             size_t group) {
            const OptimizerOptions options =
                read_optimizer_options(optimizer, source);
            const ParameterRule rule{
                .lr_scale = lr_scale,
                .weight_decay = options.weight_decay,
                .rule = options.rule};
            for (const at::Tensor& parameter : parameters) {
              handle.engine().set_parameter_options(parameter, rule, group);
            }
          })
      .def_property_readonly(
          "loss_scale",
          [](Handle& handle) { return handle.engine().loss_scale(); })
      .def_property_readonly(
          "device", [](Handle& handle) { return handle.engine().device(); })
      .def_property_readonly(
          "memory_plan",
          [](Handle& handle) {
            return bytes_by_tier([&](MemoryTier tier) {
              return handle.engine().planned_memory(tier);
            });
          })
      .def_property_readonly(
          "memory",
          [](Handle& handle) {
            return bytes_by_tier([&](MemoryTier tier) {
              return handle.engine().measured_memory(tier);
            });
          })
      .def_property_readonly("statistics", [](Handle& handle) {
        const PagerStatistics counts = handle.engine().stats().paging;
        return std::map<std::string, int64_t>{
            {"planned_unshards", counts.planned_unshards},
            {"on_demand_unshards", counts.on_demand_unshards},
            {"reductions", counts.reductions},
            {"steps", counts.steps}};
      });
}

/// The batches of one rank, which may begin at any sample.
struct RankBatches {
  RankBatches(
      size_t samples,
      int64_t batch_size,
      int index,
      int count,
      uint64_t seed,
      int64_t accumulate)
      : order(samples, batch_size, BatchShare{index, count}, seed, accumulate),
        batches(order.batches()) {}

  SampleOrder order;
  EpochBatches batches;
};

void bind_data(py::module_& module) {
  py::class_<RankBatches>(module, "RankBatches")
      .def(py::init<size_t, int64_t, int, int, uint64_t, int64_t>())
      .def_property_readonly(
          "per_epoch",
          [](const RankBatches& rank) { return rank.batches.per_epoch(); })
      .def(
          "batch",
          [](const RankBatches& rank, int64_t number) {
            return rank.order.batch(number, rank.batches).samples;
          })
      .def(
          "position_of",
          [](const RankBatches& rank, int64_t number) {
            const SamplePosition position = rank.batches.position_of(number);
            return std::pair(position.epoch, position.samples);
          })
      .def("begin_at", [](RankBatches& rank, int64_t epoch, int64_t samples) {
        return rank.batches.begin_at({epoch, samples});
      });
}

/// A message of the engine, with Python's names in place of those of C++.
std::string in_python(std::string message) {
  static const std::vector<std::pair<std::string, std::string>> kNames{
      {"tessera::lazy() (Python: tessera.lazy())", "tessera.lazy()"},
      {"NoGradGuard", "torch.no_grad()"},
      {"tessera::Engine::", "engine."},
      {"Engine::", "engine."},
      {"EngineOptions::", ""},
      {"OptimizerOptions::", "optimizer."},
      {"requires_grad_(false)", "requires_grad_(False)"},
      {"tessera::", "tessera."}};
  for (const auto& [cpp, python] : kNames) {
    for (size_t i = message.find(cpp); i != std::string::npos;
         i = message.find(cpp, i + python.size())) {
      message.replace(i, cpp.size(), python);
    }
  }
  return message;
}

} // namespace

// NOLINTNEXTLINE
PYBIND11_MODULE(_C, module) {
  // Never freed: the interpreter may be gone by then.
  static PyObject* const error =
      py::exception<Error>(module, "Error", PyExc_RuntimeError).release().ptr();
  static PyObject* const nonfinite =
      py::exception<NonfiniteGradientError>(
          module, "NonfiniteGradientError", error)
          .release()
          .ptr();
  py::register_exception_translator([](std::exception_ptr thrown) {
    try {
      std::rethrow_exception(std::move(thrown));
    } catch (const NonfiniteGradientError& failure) {
      PyErr_SetString(nonfinite, in_python(failure.what()).c_str());
    } catch (const Error& failure) {
      PyErr_SetString(error, in_python(failure.what()).c_str());
    }
  });
  bind_job(module);
  bind_modules(module);
  bind_checkpoints(module);
  bind_engine(module);
  bind_data(module);
  bind_plan(module);
}

} // namespace tessera::python
