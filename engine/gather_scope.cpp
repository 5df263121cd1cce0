// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/gather_scope.h"

#include "tessera/engine/full_values.h"
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/log.h"
#include "tessera/sharding/paging/gather_scopes.h"

#include <c10/core/GradMode.h>

#include <exception>

namespace tessera {

namespace {

/// Tensors of inference mode count no writes; 0 for all of theirs.
int64_t writes_to(const at::Tensor& value) {
  return value.is_inference() ? 0 : static_cast<int64_t>(value._version());
}

} // namespace

GatherScope::GatherScope(
    sharding::GatherScopes& scopes,
    std::weak_ptr<const void> engine,
    std::vector<sharding::Page*> pages,
    bool writable,
    bool on_all_stages)
    : scopes_(&scopes),
      engine_(std::move(engine)),
      pages_(std::move(pages)),
      writable_(writable),
      on_all_stages_(on_all_stages) {
  scopes.pin(pages_, writable);
}

GatherScope::~GatherScope() {
  if (scopes_ != nullptr && !engine_.expired()) {
    try {
      take_full_values();
    } catch (const std::exception& error) { // e.g. of other sizes by now
      log_error("the end of a gather scope: {}", error.what());
    }
    scopes_->unpin(pages_, writable_, on_all_stages_);
  }
}

void GatherScope::commit() {
  sharding::GatherScopes* const scopes = std::exchange(scopes_, nullptr);
  if (scopes == nullptr || engine_.expired()) {
    return;
  }
  std::exception_ptr failure;
  try {
    take_full_values();
  } catch (const std::exception&) {
    failure = std::current_exception();
  }
  scopes->unpin(pages_, writable_, on_all_stages_);
  if (failure) {
    std::rethrow_exception(failure);
  }
  if (writable_) {
    scopes->check_written(on_all_stages_);
  }
}

at::Tensor GatherScope::full(const at::Tensor& parameter) {
  TESSERA_CHECK(
      scopes_ != nullptr && !engine_.expired(),
      "GatherScope::full: the scope has ended.");
  for (sharding::Page* const page : pages_) {
    for (size_t i = 0; i < page->parameters().size(); ++i) {
      if (!page->parameters()[i].record.tensor.is_same(parameter)) {
        continue;
      }
      if (engine::division_of(parameter) == nullptr) {
        return parameter;
      }
      for (const Full& known : full_) {
        if (known.parameter.is_same(parameter)) {
          return known.value;
        }
      }
      const at::Tensor local = page->view_of(page->full(), i);
      const at::Tensor value = engine::full_value_of(local, parameter);
      full_.push_back({parameter, local, value, writes_to(value)});
      return value;
    }
  }
  TESSERA_FAIL(
      "GatherScope::full: a parameter of sizes {} is not one of the scope. Open the scope with it, or with all (Engine::gather()).",
      parameter.sizes());
}

void GatherScope::take_full_values() {
  const c10::NoGradGuard no_grad;
  for (const Full& full : std::exchange(full_, {})) {
    const bool is_counted = !full.value.is_inference();
    if (is_counted ? writes_to(full.value) != full.version : writable_) {
      TESSERA_CHECK(
          writable_,
          "GatherScope::full: the whole value of '{}' was written to, and the scope is not writable: what was written is lost. Open it with GatherOptions::writable.",
          engine::division_of(full.parameter)->name());
      full.local.copy_(engine::local_value_of(full.value, full.parameter));
    }
  }
}

GatherScope::GatherScope(GatherScope&& other) noexcept
    : scopes_(std::exchange(other.scopes_, nullptr)),
      engine_(std::move(other.engine_)),
      pages_(std::move(other.pages_)),
      writable_(other.writable_),
      on_all_stages_(other.on_all_stages_),
      full_(std::move(other.full_)) {}

} // namespace tessera
