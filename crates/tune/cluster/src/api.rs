//! The way to the API server: blocking calls that ask whether to go on, try again while nobody answers, and say what was refused.
//!
//! Limits: an API server that does not answer is given up after the patience of [`ClusterAccess`].
//! Invariants: what is tried again may have been done before: an object that exists then is the one that was made.

use std::path::PathBuf;
use std::pin::pin;
use std::time::Duration;

use kube::api::{DeleteParams, ListParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::runtime::Runtime;

use crate::clock;
use crate::error::ClusterError;

/// Asked all the time while something waits.
pub(crate) type Check<'a> = agent::Check<'a>;

const LOOK: Duration = Duration::from_millis(50);
/// Between two looks at the cluster, and before something is tried again.
pub(crate) const POLL: Duration = Duration::from_millis(500);
const CALL_LIMIT: Duration = Duration::from_secs(30);
const PAGE: u32 = 500;

/// Which cluster, and how patient to be with it.
#[derive(Clone, Debug)]
pub struct ClusterAccess {
    /// In place of `$KUBECONFIG` and the usual file.
    pub kubeconfig: Option<PathBuf>,
    /// In place of the file's own.
    pub context: Option<String>,
    /// How long an API server may not answer. What was deleted may take twice as long to be gone, before it is named.
    pub patience: Duration,
}

impl Default for ClusterAccess {
    fn default() -> Self {
        Self { kubeconfig: None, context: None, patience: Duration::from_secs(60) }
    }
}

/// A connection.
pub(crate) struct Server {
    /// As the kubeconfig has it.
    address: String,
    pub(crate) client: Client,
    pub(crate) runtime: Runtime,
    pub(crate) patience: Duration,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Server")
    }
}

impl Server {
    /// Reads the kubeconfig; connects to nothing yet.
    pub(crate) fn new(access: &ClusterAccess) -> Result<Self, ClusterError> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("cluster")
            .enable_all()
            .build()
            .map_err(ClusterError::Host)?;
        let options = KubeConfigOptions { context: access.context.clone(), ..Default::default() };
        let mut config = runtime.block_on(async {
            match &access.kubeconfig {
                Some(path) => {
                    let file = Kubeconfig::read_from(path)
                        .map_err(|it| ClusterError::Access(it.into()))?;
                    Config::from_custom_kubeconfig(file, &options)
                        .await
                        .map_err(|it| ClusterError::Access(it.into()))
                }
                None if access.context.is_some() => Config::from_kubeconfig(&options)
                    .await
                    .map_err(|it| ClusterError::Access(it.into())),
                None => Config::infer().await.map_err(|it| ClusterError::Access(it.into())),
            }
        })?;
        let address = config.cluster_url.to_string();
        config.connect_timeout = Some(access.patience.min(CALL_LIMIT));
        config.read_timeout = None;
        let client = {
            let _inside = runtime.enter();
            Client::try_from(config).map_err(|it| ClusterError::Access(it.into()))?
        };
        Ok(Self { address, client, runtime, patience: access.patience })
    }

    /// Waits for a future, asking whether to go on.
    pub(crate) fn wait<T>(
        &self,
        check: Check<'_>,
        future: impl Future<Output = T>,
    ) -> Result<T, ClusterError> {
        self.runtime.block_on(async {
            let mut future = pin!(future);
            loop {
                if let Ok(value) = tokio::time::timeout(LOOK, &mut future).await {
                    return Ok(value);
                }
                check().map_err(ClusterError::Ended)?;
            }
        })
    }

    /// Waits for an answer, which may not come.
    pub(crate) fn limited<T>(
        &self,
        check: Check<'_>,
        future: impl Future<Output = kube::Result<T>>,
    ) -> Result<kube::Result<T>, ClusterError> {
        self.limited_to(CALL_LIMIT, check, future)
    }

    /// The same within another time. The library asks again by itself while a server says that it is too busy.
    pub(crate) fn limited_to<T>(
        &self,
        limit: Duration,
        check: Check<'_>,
        future: impl Future<Output = kube::Result<T>>,
    ) -> Result<kube::Result<T>, ClusterError> {
        let answer = self.wait(check, async { tokio::time::timeout(limit, future).await })?;
        Ok(answer.unwrap_or_else(|_| Err(kube::Error::Service("it does not answer".into()))))
    }

    /// Pauses before the next look.
    pub(crate) fn pause(&self, check: Check<'_>) -> Result<(), ClusterError> {
        check().map_err(ClusterError::Ended)?;
        self.wait(check, async { tokio::time::sleep(POLL).await })
    }

    /// Calls until somebody answers. `again` says whether it is not the first time.
    fn call<T, F: Future<Output = kube::Result<T>>>(
        &self,
        what: &str,
        check: Check<'_>,
        mut make: impl FnMut() -> F,
    ) -> Result<(T, bool), Failure> {
        let begun = clock::now();
        let mut again = false;
        loop {
            let error = match self.limited(check, make()).map_err(Failure::Error)? {
                Ok(value) => return Ok((value, again)),
                Err(error) => error,
            };
            if let kube::Error::Api(status) = &error
                && !matches!(status.code, 429 | 500 | 502..=504)
            {
                let (what, code, why) = (what.to_owned(), status.code, status.message.clone());
                return Err(Failure::Api { what, code, why, again });
            }
            if matches!(error, kube::Error::SerdeError(_) | kube::Error::BuildRequest(_)) {
                let (what, source) = (what.to_owned(), Box::new(error));
                return Err(Failure::Error(ClusterError::Answer { what, source }));
            }
            if begun.elapsed() >= self.patience {
                let (address, seconds) = (self.address.clone(), self.patience.as_secs());
                // The library would say the same twice.
                let source =
                    if let kube::Error::Service(why) = error { why } else { Box::new(error) };
                return Err(Failure::Error(ClusterError::Lost { address, seconds, source }));
            }
            again = true;
            self.pause(check).map_err(Failure::Error)?;
        }
    }

    /// All objects that have these labels; those without any, for an empty selector.
    pub(crate) fn list<K>(
        &self,
        api: &Api<K>,
        what: &str,
        parameters: &ListParams,
        check: Check<'_>,
    ) -> Result<Vec<K>, ClusterError>
    where
        K: Clone + DeserializeOwned + std::fmt::Debug,
    {
        let mut all = Vec::new();
        let mut parameters = parameters.clone().limit(PAGE);
        loop {
            let (page, _) =
                self.call(what, check, || api.list(&parameters)).map_err(Failure::sentence)?;
            all.extend(page.items);
            match page.metadata.continue_.filter(|it| !it.is_empty()) {
                Some(token) => parameters = parameters.continue_token(&token),
                None => return Ok(all),
            }
        }
    }

    /// An object, if it is there.
    pub(crate) fn get<K>(
        &self,
        api: &Api<K>,
        name: &str,
        check: Check<'_>,
    ) -> Result<Option<K>, ClusterError>
    where
        K: Clone + DeserializeOwned + std::fmt::Debug,
    {
        match self.call(&format!("get {name}"), check, || api.get(name)) {
            Ok((found, _)) => Ok(Some(found)),
            Err(Failure::Api { code: 404, .. }) => Ok(None),
            Err(other) => Err(other.sentence()),
        }
    }

    /// Makes an object.
    pub(crate) fn create<K>(
        &self,
        api: &Api<K>,
        what: &str,
        object: &K,
        check: Check<'_>,
    ) -> Result<Made, ClusterError>
    where
        K: Clone + DeserializeOwned + std::fmt::Debug + Serialize,
    {
        let parameters = PostParams::default();
        match self.call(&format!("create {what}"), check, || api.create(&parameters, object)) {
            Ok(_) => Ok(Made::Now),
            Err(Failure::Api { code: 409, again, .. }) => {
                Ok(if again { Made::Now } else { Made::Before })
            }
            Err(other) => Err(other.sentence()),
        }
    }

    /// Removes an object, unless it is gone.
    pub(crate) fn delete<K>(
        &self,
        api: &Api<K>,
        name: &str,
        check: Check<'_>,
    ) -> Result<(), ClusterError>
    where
        K: Clone + DeserializeOwned + std::fmt::Debug,
    {
        let parameters = DeleteParams::background();
        match self.call(&format!("delete {name}"), check, || api.delete(name, &parameters)) {
            Ok(_) | Err(Failure::Api { code: 404, .. }) => Ok(()),
            Err(other) => Err(other.sentence()),
        }
    }

    /// What the server says to a question.
    pub(crate) fn ask<T, F: Future<Output = kube::Result<T>>>(
        &self,
        what: &str,
        check: Check<'_>,
        make: impl FnMut() -> F,
    ) -> Result<Option<T>, ClusterError> {
        match self.call(what, check, make) {
            Ok((answer, _)) => Ok(Some(answer)),
            Err(Failure::Api { code: 403 | 404, .. }) => Ok(None),
            Err(other) => Err(other.sentence()),
        }
    }
}

/// Whether an object is new.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Made {
    Now,
    /// It was there.
    Before,
}

/// Why a call has failed.
enum Failure {
    Api { what: String, code: u16, why: String, again: bool },
    Error(ClusterError),
}

impl Failure {
    fn sentence(self) -> ClusterError {
        match self {
            Self::Api { what, why, .. } => ClusterError::Refused { what, why },
            Self::Error(error) => error,
        }
    }
}
