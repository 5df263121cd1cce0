// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/checkpoint/save_weights.h"

#include "tessera/engine/checkpoint/subject_tensors.h"
#include "tessera/engine/checkpoint/tensor_io.h"
#include "tessera/runtime/core/error.h"
#include "tessera/sharding/page_key.h"

#include <c10/core/GradMode.h>

#include <exception>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

namespace tessera {

namespace fs = std::filesystem;

namespace {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

/// What is whole on every rank: buffers, and parameters that no engine has.
NamedTensors whole_tensors_of(const torch::nn::Module& module) {
  NamedTensors tensors;
  std::unordered_set<const c10::TensorImpl*> seen;
  const auto add = [&](const std::string& name, const at::Tensor& tensor) {
    if (tensor.defined() && !has_page_key(tensor) &&
        seen.insert(tensor.unsafeGetTensorImpl()).second) {
      tensors.emplace_back(name, tensor.detach());
    }
  };
  for (const auto& item : module.named_parameters()) {
    add(item.key(), item.value());
  }
  for (const auto& item : module.named_buffers()) {
    add(item.key(), item.value());
  }
  return tensors;
}

void add_specs(
    const NamedTensors& tensors,
    std::vector<SafetensorsSpec>& specs) {
  for (const auto& [name, tensor] : tensors) {
    specs.push_back(
        {name, saved_dtype_of(tensor.scalar_type()), tensor.sizes().vec()});
  }
}

std::vector<SafetensorsSpec> specs_of(const Pager& pager) {
  std::vector<SafetensorsSpec> specs;
  for (const auto& group : pager.groups()) {
    for (const PagedParameter& parameter : group->parameters()) {
      specs.push_back(
          {parameter.record.name(),
           saved_dtype_of(group->original_dtype()),
           parameter.record.tensor.sizes().vec()});
    }
  }
  return specs;
}

SafetensorsWriter open_file(
    const fs::path& path,
    std::vector<SafetensorsSpec> specs) {
  const fs::path file = weights_file(path);
  std::error_code code;
  if (file.has_parent_path()) {
    fs::create_directories(file.parent_path(), code);
  }
  TESSERA_CHECK(
      !code,
      "save_weights: cannot create the folder ",
      file.parent_path(),
      ": ",
      code.message(),
      ". Give another path.");
  // transformers refuses files that do not say "pt".
  return {file, std::move(specs), {{"format", "pt"}}};
}

void write(
    SafetensorsWriter& writer,
    const std::string& name,
    const at::Tensor& tensor) {
  const at::Tensor rows = tensor.cpu().contiguous();
  if (rows.numel() > 0) {
    writer.write(name, raw_bytes(rows));
  }
}

void write_all(SafetensorsWriter& writer, const NamedTensors& tensors) {
  for (const auto& [name, tensor] : tensors) {
    write(writer, name, tensor);
  }
}

} // namespace

fs::path weights_file(const fs::path& path) {
  return path.extension() == ".safetensors" ? path : path / "model.safetensors";
}

void save_weights(const torch::nn::Module& module, const fs::path& path) {
  const c10::NoGradGuard no_grad;
  for (const auto& item : module.named_parameters()) {
    TESSERA_CHECK(
        !has_page_key(item.value()),
        "save_weights: '",
        item.key(),
        "' is sharded; call Engine::save_weights() on every rank.");
  }
  const NamedTensors tensors = whole_tensors_of(module);
  std::vector<SafetensorsSpec> specs;
  add_specs(tensors, specs);
  SafetensorsWriter writer = open_file(path, std::move(specs));
  write_all(writer, tensors);
  writer.commit();
}

void save_sharded_weights(
    Pager& pager,
    const torch::nn::Module& module,
    const fs::path& path) {
  const c10::NoGradGuard no_grad;
  const NamedTensors whole = whole_tensors_of(module);
  std::optional<SafetensorsWriter> writer; // on rank 0
  on_all_ranks(pager, "save_weights: creating the file", [&] {
    if (pager.rank() == 0) {
      std::vector<SafetensorsSpec> specs = specs_of(pager);
      add_specs(whole, specs);
      writer.emplace(open_file(path, std::move(specs)));
    }
  });
  // A disk that fails half-way must not keep rank 0 from the gathers.
  std::exception_ptr error;
  for (size_t g = 0; g < pager.groups().size(); ++g) {
    const ParamGroup& group = *pager.groups()[g];
    const at::Tensor values = pager.whole_master(g);
    if (!writer || error) {
      continue;
    }
    try {
      for (size_t i = 0; i < group.parameters().size(); ++i) {
        write(
            *writer,
            group.parameters()[i].record.name(),
            group.view_of(values, i).to(group.original_dtype()));
      }
    } catch (...) {
      error = std::current_exception();
    }
  }
  on_all_ranks(pager, "save_weights: writing the file", [&] {
    if (error) {
      std::rethrow_exception(error);
    }
    if (writer) {
      write_all(*writer, whole);
      writer->commit();
    }
  });
}

} // namespace tessera
