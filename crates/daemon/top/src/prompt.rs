//! A line that a person types: a filter, or where a queue goes.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

/// More is no name.
const TEXT_MAX: usize = 200;

/// What is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Question {
    /// A text that names have; what it was before.
    Filter { before: String },
    /// Where an export or a queue goes.
    Move { daemon: usize, export: String, queue: Option<u16> },
    /// The number of an iothread in the pool.
    Pin { daemon: usize, export: String, queue: u16 },
    /// Whether a pool moves queues.
    Place { daemon: usize, pool: String },
}

/// The line, while it is typed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Prompt {
    pub(crate) question: Question,
    pub(crate) text: String,
    /// What can be said, which Tab goes through.
    pub(crate) choices: Vec<String>,
}

/// What became of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Typed {
    /// It goes on.
    More,
    /// It is done.
    Done,
    /// It was given up.
    Never,
}

impl Prompt {
    pub(crate) fn new(question: Question, text: String, choices: Vec<String>) -> Self {
        Self { question, text, choices }
    }

    /// The question, for people.
    pub(crate) fn label(&self) -> String {
        match &self.question {
            Question::Filter { .. } => "names with: ".to_owned(),
            Question::Move { export, queue: Some(queue), .. } => {
                format!("move queue {queue} of {export}, until its client leaves, to iothread: ")
            }
            Question::Move { export, queue: None, .. } => {
                format!("move all of {export}, also after a restart, to iothread: ")
            }
            Question::Pin { export, queue, .. } => {
                format!("pin queue {queue} of {export}, also after a restart, to iothread number: ")
            }
            Question::Place { pool, .. } => {
                format!("placement by pool {pool}, also after a restart (auto, frozen): ")
            }
        }
    }

    /// Takes a key.
    pub(crate) fn press(&mut self, key: KeyEvent) -> Typed {
        let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
        if let KeyCode::Char(letter) = key.code {
            return match (is_control, letter) {
                (true, 'c' | 'g') => Typed::Never,
                (true, 'u') => {
                    self.text.clear();
                    Typed::More
                }
                (true, _) => Typed::More,
                (false, letter) => {
                    if self.text.len() < TEXT_MAX {
                        self.text.push(letter);
                    }
                    Typed::More
                }
            };
        }
        if key.code == KeyCode::Esc {
            return Typed::Never;
        }
        if key.code == KeyCode::Enter {
            return Typed::Done;
        }
        if key.code == KeyCode::Backspace {
            self.text.pop();
        }
        if key.code == KeyCode::Tab {
            self.complete();
        }
        Typed::More
    }

    /// The first choice that begins so; of a choice the next one.
    fn complete(&mut self) {
        let place = self.choices.iter().position(|it| *it == self.text);
        let next = match place {
            Some(place) => self.choices.get(place + 1).or(self.choices.first()),
            None => self.choices.iter().find(|it| it.starts_with(&self.text)),
        };
        if let Some(next) = next {
            self.text.clone_from(next);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn typed(prompt: &mut Prompt, keys: &[KeyCode]) -> Typed {
        let mut typed = Typed::More;
        for key in keys {
            typed = prompt.press(KeyEvent::from(*key));
        }
        typed
    }

    #[test]
    fn tab_goes_through_the_choices() {
        let question = Question::Move { daemon: 0, export: "e".to_owned(), queue: Some(1) };
        let choices = ["t0", "t1", "main"].map(str::to_owned).to_vec();
        let mut prompt = Prompt::new(question, String::new(), choices);
        typed(&mut prompt, &[KeyCode::Tab]);
        assert_eq!(prompt.text, "t0");
        typed(&mut prompt, &[KeyCode::Tab, KeyCode::Tab, KeyCode::Tab]);
        assert_eq!(prompt.text, "t0");
        typed(&mut prompt, &[KeyCode::Backspace, KeyCode::Backspace]);
        let end = typed(&mut prompt, &[KeyCode::Char('m'), KeyCode::Tab, KeyCode::Enter]);
        assert_eq!((prompt.text.as_str(), end), ("main", Typed::Done));
        assert_eq!(typed(&mut prompt, &[KeyCode::Esc]), Typed::Never);
    }

    #[test]
    fn a_text_is_bounded() {
        let question = Question::Filter { before: String::new() };
        let mut prompt = Prompt::new(question, String::new(), Vec::new());
        typed(&mut prompt, &[KeyCode::Char('a'); TEXT_MAX + 5]);
        assert_eq!(prompt.text.len(), TEXT_MAX);
        prompt.press(KeyEvent::new(KeyCode::Char('u'), KeyModifiers::CONTROL));
        assert_eq!(prompt.text, "");
    }
}
