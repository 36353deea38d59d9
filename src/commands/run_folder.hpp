#pragma once
#include <filesystem>

#include "hat/checkpoint/checkpoint.hpp"
#include "hat/dataset/dataset.hpp"
#include "hat/gradient/run_plan.hpp"

namespace hat {

/// Throws InputError when the run cannot be written there: it holds a run and resume is not set, is a file, or cannot
/// be written. Leaves nothing behind.
void check_run_folder(const Deck& deck);

/// Creates the folder and writes deck.toml, the effective deck.
void make_run_folder(const RunPlan& plan);

/// The newest complete checkpoint of the run. Throws InputError when there is none.
std::filesystem::path checkpoint_to_continue(const std::filesystem::path& run);

/// Throws InputError unless this deck and dataset continue what the checkpoint stopped in the middle of: the same
/// model, the same data in the same order.
void check_continuation(const CheckpointReader& checkpoint, const RunPlan& plan, const Dataset& dataset);

/// Reads all of the checkpoint; throws InputError when anything is damaged, before the run folder is touched.
void check_undamaged(const CheckpointReader& checkpoint);

}  // namespace hat
