// SPDX-License-Identifier: Apache-2.0
#pragma once
// `ImageTaskOptions` are the options of the task image_folder.

#include "tessera/tasks/image_options.h"
#include "tessera/zoo/inputs/example_options.h"

namespace tessera::tasks {

/// Parts of the section `data`.
struct ImageTaskOptions {
  ImageOptions images;
  zoo::ExampleOptions examples; ///< pixels, and patches that are masked
};

} // namespace tessera::tasks
