//! Headless Chromium, driven by Debian's chromedriver over the W3C WebDriver protocol.
//!
//! Where it stands: tests of pages open a file with it, use the page as a person does, and look at what is shown. One
//! `Browser` is one chromedriver with one window.
//!
//! Invariants: no name is resolved, so that nothing leaves the machine; driver and browser end with their `Browser`; all
//! that they write lies in a directory that goes with it.
//! Limits: every command to the driver is bounded, see `driver`; scripts and loading by `PAGE_LIMIT`.

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use guest::find_program;
use serde_json::{Value, json};

use crate::process::Program;

mod audit;
mod driver;
mod element;
mod emulation;
mod log;
mod paper;
mod processes;

use self::driver::{Driver, Session};

pub use self::audit::Fault;
pub use self::element::Element;
pub use self::emulation::{Appearance, Medium, Scheme, Screen, Scripts};
pub use self::log::Message;
pub use self::paper::{Paper, Pdf};

const CHROMIUM: &str = "chromium";
const CHROMEDRIVER: &str = "chromedriver";
/// How long a page may load, and a script of a test run.
const PAGE_LIMIT: Duration = Duration::from_secs(60);

/// A running browser with one window.
#[derive(Debug)]
pub struct Browser {
    session: Session,
    /// What the page is shown on.
    screen: Cell<Screen>,
    /// Ends the processes when it is dropped.
    driver: Driver,
}

impl Browser {
    /// Why no browser can run here, if so.
    pub fn missing() -> Option<String> {
        if find_program(CHROMIUM).is_none() {
            return Some(format!("{CHROMIUM} is not installed"));
        }
        Program::named(CHROMEDRIVER, CHROMEDRIVER, &[]).missing()
    }

    /// Starts one, with the screen of a desk.
    ///
    /// # Errors
    /// If one of the programs is missing or does not come up in time.
    pub fn start() -> Result<Self> {
        let binary = find_program(CHROMIUM).with_context(|| format!("no {CHROMIUM}"))?;
        let driver = Driver::start()?;
        let session = driver.session(&capabilities(&binary, &driver.profile()))?;
        let milliseconds = PAGE_LIMIT.as_millis();
        session.post("timeouts", &json!({ "script": milliseconds, "pageLoad": milliseconds }))?;
        // The browser's own first page loads things.
        session.post("url", &json!({ "url": "about:blank" }))?;
        let browser = Self { session, screen: Cell::new(Screen::DESKTOP), driver };
        browser.show_on(Screen::DESKTOP)?;
        Ok(browser)
    }

    /// The directory in which it keeps what it remembers; its processes name it on their command lines.
    pub fn profile(&self) -> PathBuf {
        self.driver.profile()
    }

    /// Opens a file and waits until it is loaded, with all that it loads. What the browser noted before is dropped.
    ///
    /// # Errors
    /// If there is no such file, its path is not absolute, or has characters that a URL writes otherwise.
    pub fn open(&self, file: &Path) -> Result<()> {
        // The browser would show a page of its own that says so.
        std::fs::metadata(file).with_context(|| file.display().to_string())?;
        let url = url_of(file)?;
        self.console()?;
        self.requests()?;
        self.session.post("url", &json!({ "url": url }))?;
        Ok(())
    }

    /// Runs the body of a function in the page; returns what it returns. It finds `arguments` under this name.
    ///
    /// # Errors
    /// If it throws, or does not end in time.
    pub fn script(&self, body: &str, arguments: &[Value]) -> Result<Value> {
        self.session.post("execute/sync", &json!({ "script": body, "args": arguments }))
    }

    /// Evaluates one expression in the page.
    ///
    /// # Errors
    /// As for [`Browser::script`].
    pub fn value(&self, expression: &str) -> Result<Value> {
        self.script(&format!("return ({expression});"), &[])
    }

    /// The first element that a CSS selector finds.
    ///
    /// # Errors
    /// If it finds none.
    pub fn find(&self, selector: &str) -> Result<Element<'_>> {
        let found = self.find_all(selector)?.into_iter().next();
        found.with_context(|| format!("the page has no {selector}"))
    }

    /// All elements that a CSS selector finds, in the order of the page.
    ///
    /// # Errors
    /// If the selector is not one.
    pub fn find_all(&self, selector: &str) -> Result<Vec<Element<'_>>> {
        let found = self
            .session
            .post("elements", &json!({ "using": "css selector", "value": selector }))?;
        let found = found.as_array().context("a list of elements")?;
        found.iter().map(|it| Element::new(&self.session, it)).collect()
    }

    /// How many of the elements that a CSS selector finds have a place on the page. One that is hidden, or lies in
    /// something hidden or folded, has none.
    ///
    /// # Errors
    /// If the selector is not one.
    pub fn count_displayed(&self, selector: &str) -> Result<usize> {
        let body = "return [...document.querySelectorAll(arguments[0])]
            .filter(it => it.checkVisibility() && it.getClientRects().length > 0).length;";
        let count = self.script(body, &[json!(selector)])?;
        count.as_u64().and_then(|it| usize::try_from(it).ok()).context("a count")
    }

    /// A command of the Chrome DevTools Protocol.
    fn devtools(&self, command: &str, parameters: &Value) -> Result<Value> {
        self.session.post("goog/cdp/execute", &json!({ "cmd": command, "params": parameters }))
    }
}

fn capabilities(binary: &Path, profile: &Path) -> Value {
    let mut arguments = vec![
        "--headless".to_owned(),
        format!("--user-data-dir={}", profile.display()),
        // A container may have little of /dev/shm.
        "--disable-dev-shm-usage".to_owned(),
        "--disable-gpu".to_owned(),
        // They would take some of the width, on a desk's screen but not on others.
        "--hide-scrollbars".to_owned(),
        // Neither the page nor the browser reaches anybody.
        "--host-resolver-rules=MAP * ~NOTFOUND".to_owned(),
        "--disable-background-networking".to_owned(),
        "--disable-component-update".to_owned(),
    ];
    if rustix::process::geteuid().is_root() {
        // Chromium refuses to start with it.
        arguments.push("--no-sandbox".to_owned());
    }
    json!({ "capabilities": { "alwaysMatch": {
        "browserName": "chrome",
        "goog:loggingPrefs": { "browser": "ALL", "performance": "ALL" },
        "goog:chromeOptions": {
            "binary": binary,
            "args": arguments,
            "perfLoggingPrefs": { "enableNetwork": true, "enablePage": false },
        },
    } } })
}

fn url_of(file: &Path) -> Result<String> {
    let text = file.to_str().with_context(|| format!("{} is not text", file.display()))?;
    let is_plain = |it: char| it.is_ascii_alphanumeric() || "/._-+".contains(it);
    ensure!(
        text.starts_with('/') && text.chars().all(is_plain),
        "{text} is not an absolute path of plain characters"
    );
    Ok(format!("file://{text}"))
}
