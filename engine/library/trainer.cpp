#include "sherd/trainer.h"

#include "engine/library/errors.h"
#include "engine/library/trainer_parts.h"

namespace sherd::v0 {

using library::for_user;

namespace {

template <class Call>
auto in_use(TrainerParts& parts, const Call& call) {
  return for_user([&] {
    const TrainerParts::InUse in_use(parts);
    return call();
  });
}

}  // namespace

Trainer::Trainer(const Recipe& recipe, const TrainerOptions& options)
    : parts_(for_user([&] { return std::make_unique<Parts>(recipe, options); })) {}
Trainer::~Trainer() = default;
Trainer::Trainer(Trainer&& other) noexcept = default;
Trainer& Trainer::operator=(Trainer&& other) noexcept = default;

int Trainer::num_ranks() const {
  return parts_->num_ranks();
}
std::int64_t Trainer::steps_done() const {
  return parts_->steps_done();
}
std::int64_t Trainer::max_steps() const {
  return parts_->max_steps();
}
bool Trainer::is_done() const {
  return parts_->is_done();
}
bool Trainer::evaluation_is_due() const {
  return parts_->evaluation_is_due();
}
std::string Trainer::newest_checkpoint() const {
  return parts_->newest_checkpoint();
}

StepMetrics Trainer::step() {
  return in_use(*parts_, [&] { return parts_->step(); });
}
Evaluation Trainer::evaluate() {
  return in_use(*parts_, [&] { return parts_->evaluate({}); });
}
Evaluation Trainer::evaluate(std::int64_t num_batches) {
  return in_use(*parts_, [&] { return parts_->evaluate(num_batches); });
}
void Trainer::save_if_due() {
  in_use(*parts_, [&] { parts_->save_if_due(); });
}
std::string Trainer::save() {
  return in_use(*parts_, [&] { return parts_->save(); });
}
void Trainer::finish() {
  in_use(*parts_, [&] { parts_->finish(); });
}
void Trainer::train(const TrainCallbacks& callbacks) {
  in_use(*parts_, [&] { parts_->train(callbacks); });
}
std::string Trainer::sample(const std::string& prompt, const SampleOptions& options) {
  return in_use(*parts_, [&] { return parts_->sample(prompt, options); });
}

}  // namespace sherd::v0
